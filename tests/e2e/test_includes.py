"""The rooms and who may include whom; one static library a room; a main() only where programs are."""
import re
import unittest

from ebbtide import REPO

ROOMS = {  # room -> rooms whose headers it may include besides its own
    "protocol": set(),
    "vmm": set(),
    "kernels": set(),
    "runtime/model": set(),
    "stages": {"protocol", "vmm", "kernels", "runtime/model"},
    "runtime": {"protocol", "runtime/model"},
    "tools": {"protocol", "runtime/model"},
    "tests": {"protocol", "vmm", "kernels", "runtime/model", "stages", "runtime"},
}
LIBRARIES = {"protocol": "protocol", "vmm": "vmm", "kernels": "kernels", "model": "runtime/model", "stages": "stages",
             "runtime": "runtime", "toolkit": "tools/kit", "topview": "tools/top"}
CONTRACTS = {"protocol/error.h", "kernels/tensor_type.h"}  # header-only, open to every room
BENCH_TOO = {"kernels", "vmm"}
# Beside kernels/*.cu: the driver, the executor (its header for the launchers alone), the links, and the tests' own programs.
CUDA_FILES = {"vmm/driver_cuda.c", "kernels/exec_cuda.c", "kernels/exec_cuda.h", "stages/link_nccl.c",
              "tests/gpu/foreign.c", "tests/gpu/forms.c", "tests/gpu/peers.c"}
CUDA_HEADER = re.compile(r"^(cuda|cublas|nccl|nvml|nvrtc|driver_types|vector_types|mma\.h)")
FOREIGN = {"pcre2.h": {"runtime/model"}, "yaml.h": {"runtime"}, "jansson.h": {"tools", "runtime", "tests"}, "hwloc.h": {"stages"}, "curses.h": {"tools"}, "curl": {"tools"}, "immintrin.h": {"kernels"},
           "criterion": {"tests"}}
SYSTEM = re.compile(r"^(assert|complex|ctype|dirent|dlfcn|elf|endian|errno|fcntl|fenv|float|fnmatch|getopt|glob|grp|inttypes|"
                    r"limits|locale|langinfo|malloc|math|netdb|poll|pthread|pwd|sched|semaphore|setjmp|signal|spawn|std\w+|"
                    r"string|strings|syslog|termios|time|unistd|wchar|wctype|byteswap|cpuid|sysexits|"
                    r"arpa/\w+|linux/\w+|net/\w+|netinet/\w+|sys/\w+)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)


def room_of(path):
    return next((room for room in sorted(ROOMS, key=len, reverse=True) if path.startswith(room + "/")), None)


def sources():
    for room in ("protocol", "vmm", "kernels", "stages", "runtime", "tools", "tests"):
        for path in sorted((REPO / room).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh") and path.is_file():
                yield str(path.relative_to(REPO)), path.read_text(encoding="utf-8")


class Includes(unittest.TestCase):
    def test_every_include_goes_in_an_allowed_direction(self):
        wrong, count = [], 0
        for path, text in sources():
            for kind, header in INCLUDE.findall(text):
                count += 1
                if kind == '"' and not self.project_header_is_allowed(path, header):
                    wrong.append(f'{path}: "{header}"')
                if kind == "<" and not self.system_header_is_allowed(path, header):
                    wrong.append(f"{path}: <{header}>")
        self.assertEqual(wrong, [])
        self.assertGreater(count, 100)

    def project_header_is_allowed(self, path, header):
        if path.startswith("tests/") and "/" not in header and (REPO / path).with_name(header).is_file():
            return True  # a header of the test program's own
        if not (REPO / header).is_file() or not header.endswith((".h", ".cuh")):
            return False
        room, of = room_of(path), room_of(header)
        allowed = ROOMS[room] | {room} | (BENCH_TOO if path.startswith("tools/bench") else set())
        return of in allowed or header in CONTRACTS

    def system_header_is_allowed(self, path, header):
        if CUDA_HEADER.match(header):
            return path in CUDA_FILES or (path.startswith("kernels/") and path.endswith((".cu", ".cuh")))
        for name, rooms in FOREIGN.items():
            if header == name or header.startswith(name + "/"):
                return room_of(path) in rooms
        return bool(SYSTEM.match(header))

    def test_only_programs_have_a_main(self):
        with_main = [path for path, text in sources()
                     if re.search(r"^(int|void)\s+main\s*\(", text, re.M) and path.endswith((".c", ".cu"))]
        self.assertTrue(with_main)
        for path in with_main:
            self.assertRegex(path, r"^(stages/bin|runtime/bin|tools|tests)/", "a room's library has a main()")

    def test_every_room_is_one_static_library_and_links_what_it_may_include(self):
        text = "\n".join(re.sub(r"#.*", "", (REPO / f).read_text()) for f in ("CMakeLists.txt", "cmake/programs.cmake"))
        rooms = dict(re.findall(r"^\s*room\((\w+) ([\w/]+)\)", text, re.M))
        self.assertEqual(rooms, LIBRARIES)
        for name, libraries in re.findall(r"target_link_libraries\((\w+)\s+(?:PUBLIC|PRIVATE|INTERFACE)\s+([^)]*)\)", text):
            if name in rooms:
                linked = {rooms[l] for l in libraries.split() if l in rooms}
                self.assertLessEqual(linked, ROOMS[room_of(rooms[name] + "/")], f"{name} links {linked}")
        self.assertNotRegex(text, r"\b(SHARED|OBJECT)\b")

    def test_no_room_is_called_common_or_utils(self):
        names = [p.name for p in REPO.iterdir() if p.is_dir()]
        for room in ("protocol", "vmm", "kernels", "stages", "runtime", "tools"):
            names += [p.stem for p in (REPO / room).rglob("*")]
        self.assertEqual([n for n in names if n in ("common", "utils", "util", "misc", "helpers")], [])

    def test_every_source_opens_with_what_it_is(self):
        bare = [path for path, text in sources() if not path.startswith("tests/") and not text.startswith(("/* ", "// "))]
        self.assertEqual(bare, [])


if __name__ == "__main__":
    unittest.main()
