"""Bad model files: one clear line that names the file and what is wrong in it, exit 1, before anything was started."""
import os
import shutil
import struct
import time
import unittest

from ebbtide import DEMO, EbbtideTest

KIB64 = 1 << 16
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TYPES = {0: (4, 1), 8: (34, 32), 12: (144, 256), 14: (210, 256)}  # bytes and values of a block


class Gguf:
    """Where things stand in a good file, read with no checks at all."""

    def __init__(self, path):
        self.data = path.read_bytes()
        self.at = 8
        n_tensors, n_keys = self.take("<QQ")
        self.keys, self.tensors = {}, {}
        for _ in range(n_keys):
            begin, name = self.at, self.string()
            kind, = self.take("<I")
            value = self.at
            self.skip(kind)
            self.keys[name] = (begin, value, kind)
        self.tensors_at = self.at
        for _ in range(n_tensors):
            begin, name = self.at, self.string()
            dims = self.take(f"<{self.take('<I')[0]}Q")
            kind, offset = self.take("<IQ")
            n_values = 1
            for d in dims:
                n_values *= d
            block_bytes, block_values = TYPES[kind]
            self.tensors[name] = (begin, offset, n_values // block_values * block_bytes)
        self.header_end = self.at
        self.data_at = (self.at + 31) // 32 * 32

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def string(self):
        n, = self.take("<Q")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def skip(self, kind):
        if kind == 8:
            self.string()
        elif kind == 9:
            of, n = self.take("<IQ")
            for _ in range(n):
                self.skip(of)
        else:
            self.at += SIZES[kind]


class BadFiles(EbbtideTest):
    @classmethod
    def setUpClass(cls):
        cls.good = Gguf(DEMO)

    def setUp(self):
        super().setUp()
        self.started = self.sandbox / "started"
        self.launch = self.sandbox / "launch.sh"
        self.launch.write_text(f'#!/bin/sh\n: > {self.started}\nexec "$@"\n')
        self.launch.chmod(0o755)
        self.bad = self.sandbox / "bad.gguf"

    def refused(self, *words, path=None):
        """Runs the file; it must be refused by one line with its name and every one of the words."""
        path = path or self.bad
        begin = time.monotonic()
        result = self.command("run", *self.flags(1, model=path, launch=f"{self.launch} {{stage}}"), "--max-new", 1, "a",
                              seconds=20)
        took = time.monotonic() - begin
        said = result.stderr.decode(errors="replace")
        self.assertEqual(result.returncode, 1, said)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(len(said.splitlines()), 1, said)
        self.assertTrue(said.endswith("\n") and said.startswith("ebbtide"), said)
        self.assertIn(path.name, said)
        for word in words:
            self.assertIn(word, said)
        self.assertLess(took, 2.0)
        self.assertFalse(self.started.exists(), "a stage was started")
        return said

    def patched(self, *patches):
        """A copy of the demo model with bytes replaced at offsets."""
        shutil.copyfile(DEMO, self.bad)
        with open(self.bad, "r+b") as f:
            for offset, data in patches:
                f.seek(offset)
                f.write(data)

    def test_cut_at_every_64_kib(self):
        shutil.copyfile(DEMO, self.bad)
        size = (len(self.good.data) - 1) // KIB64 * KIB64
        count = 0
        while size > self.good.data_at:
            os.truncate(self.bad, size)
            with self.subTest(size=size):
                said = self.refused()
                short = [name for name, (_, offset, n) in self.good.tensors.items() if self.good.data_at + offset + n > size]
                self.assertTrue(any(name in said for name in short), f"names no tensor that is cut: {said}")
                count += 1
            size -= KIB64
        self.assertGreater(count, 280)

    def test_cut_in_the_header(self):
        shutil.copyfile(DEMO, self.bad)
        cuts = {1, 3, 4, 5, 7, 8, 12, 15, 16, 20, 23, 24, 28, 31, 32, 40, 56, 59, 60, 63, 64, 65, 72, KIB64, 2 * KIB64}
        cuts |= {self.good.tensors_at, self.good.tensors_at + 1, self.good.header_end - 1, self.good.header_end}
        for begin, value, _ in self.good.keys.values():
            cuts |= {begin, begin + 8, value, value + 1}
        for begin, _, _ in list(self.good.tensors.values())[::7]:
            cuts |= {begin, begin + 9, begin + 30}
        for size in sorted((c for c in cuts if c <= self.good.header_end), reverse=True):
            os.truncate(self.bad, size)
            with self.subTest(size=size):
                said = self.refused()
                self.assertRegex(said, r"magic|version|count|key|metadata|tensor|general\.|qwen3moe\.|tokenizer\.")

    def test_one_byte_short_names_the_last_tensor(self):
        shutil.copyfile(DEMO, self.bad)
        end = max(self.good.data_at + offset + n for _, offset, n in self.good.tensors.values())
        os.truncate(self.bad, end - 1)
        self.refused("blk.7.ffn_down_exps.weight")

    def test_an_empty_file(self):
        self.bad.write_bytes(b"")
        self.refused()

    def test_a_directory(self):
        self.bad.mkdir()
        self.refused("director")

    def test_a_missing_file(self):
        self.refused(path=self.sandbox / "nothing-here.gguf")

    def test_a_device_and_a_pipe_are_not_waited_for(self):
        os.mkfifo(self.bad)
        self.refused()

    def test_an_unreadable_file(self):
        if os.geteuid() == 0:
            self.skipTest("root may read everything")
        self.bad.write_bytes(b"GGUF")
        self.bad.chmod(0)
        self.refused()

    def test_a_wrong_magic(self):
        for magic in (b"GGML", b"FUGG", b"\0\0\0\0", b"PK\3\4"):
            with self.subTest(magic=magic):
                self.patched((0, magic))
                self.refused("magic")

    def test_a_wrong_version(self):
        for version in (0, 1, 4, 0x03000000, 0xFFFFFFFF):
            with self.subTest(version=version):
                self.patched((4, struct.pack("<I", version)))
                self.refused("version", str(version))

    def test_tensor_and_key_counts_beyond_reason(self):
        for offset, word in ((8, "tensor"), (16, "key")):
            for count in (1 << 60, (1 << 64) - 1, 1 << 32, 100000):
                with self.subTest(word, count=count):
                    self.patched((offset, struct.pack("<Q", count)))
                    said = self.refused()
                    if count >= 1 << 32:
                        self.assertIn(str(count), said)

    def test_a_tensor_past_the_end(self):
        name = "blk.3.ffn_up_exps.weight"
        begin, offset, _ = self.good.tensors[name]
        at = self.good.data.index(struct.pack("<Q", offset), begin)
        for wrong in (len(self.good.data) // 32 * 32, 1 << 40, (1 << 64) - 32, offset + 1):
            with self.subTest(offset=wrong):
                self.patched((at, struct.pack("<Q", wrong)))
                self.refused(name)

    def test_tensor_dimensions_that_cannot_be(self):
        name = "blk.3.ffn_up_exps.weight"
        at = self.good.tensors[name][0] + 8 + len(name)
        for where, data in ((at, struct.pack("<I", 0)), (at, struct.pack("<I", 5)), (at, struct.pack("<I", 1 << 31)),
                            (at + 4, struct.pack("<Q", 0)), (at + 4, struct.pack("<Q", 255)),
                            (at + 4, struct.pack("<Q", 1 << 62)), (at + 4, struct.pack("<QQQ", 1 << 32, 1 << 32, 1 << 8)),
                            (at + 4, struct.pack("<Q", 512)), (at + 12, struct.pack("<Q", 255)),
                            (at + 20, struct.pack("<Q", 15)), (at + 28, struct.pack("<I", 1000))):
            with self.subTest(at=where - at, data=data.hex()):
                self.patched((where, data))
                self.refused(name)

    def test_a_missing_tensor(self):
        for name in ("blk.3.ffn_up_exps.weight", "output_norm.weight", "token_embd.weight", "blk.7.attn_k_norm.weight"):
            with self.subTest(name):
                at = self.good.tensors[name][0] + 8
                self.patched((at, b"x"))
                self.refused(name)

    def test_a_tensor_twice(self):
        a, b = "blk.3.ffn_up_exps.weight", "blk.4.ffn_up_exps.weight"
        self.patched((self.good.tensors[b][0] + 8, a.encode()))
        self.refused(a)

    def test_values_of_keys_that_cannot_be(self):
        cases = (("qwen3moe.block_count", (0, 1 << 20, 9)), ("qwen3moe.embedding_length", (0, 255, 1 << 31)),
                 ("qwen3moe.attention.head_count", (0, 7, 1 << 30)), ("qwen3moe.attention.head_count_kv", (0, 3)),
                 ("qwen3moe.expert_count", (0, 17, 1 << 30)), ("qwen3moe.expert_used_count", (0, 17)),
                 ("qwen3moe.context_length", (0,)))
        for key, values in cases:
            for value in values:
                with self.subTest(key, value=value):
                    self.patched((self.good.keys[key][1], struct.pack("<I", value)))
                    said = self.refused()
                    self.assertTrue(key in said or key.split(".", 1)[1] in said or "weight" in said, said)

    def test_a_missing_key_and_an_unknown_architecture(self):
        for key in ("qwen3moe.block_count", "qwen3moe.expert_count", "tokenizer.ggml.tokens", "general.architecture",
                    "tokenizer.ggml.merges"):
            with self.subTest(key):
                self.patched((self.good.keys[key][0] + 8, b"x"))
                self.refused(key)
        self.patched((self.good.keys["general.architecture"][1] + 8, b"qwen9moe"))
        self.refused("architecture", "qwen9moe")

    def test_a_type_of_value_that_cannot_be(self):
        at = self.good.keys["qwen3moe.block_count"][1] - 4
        for kind in (6, 8, 9, 13, 1 << 31):
            with self.subTest(kind=kind):
                self.patched((at, struct.pack("<I", kind)))
                self.refused()

    def test_string_and_array_lengths_beyond_the_file(self):
        for key, shift in (("general.name", 0), ("tokenizer.ggml.tokens", 4), ("tokenizer.ggml.merges", 4)):
            for length in (1 << 63, (1 << 64) - 1, 1 << 40, len(self.good.data)):
                with self.subTest(key, length=length):
                    self.patched((self.good.keys[key][1] + shift, struct.pack("<Q", length)))
                    self.refused(key)


if __name__ == "__main__":
    unittest.main()
