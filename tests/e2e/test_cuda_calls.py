"""No result of a CUDA call is dropped: read in the sources, as no compiler says it of calls through tables and of launches."""
import re
import unittest

from ebbtide import REPO, EbbtideTest

# What a room may say (void) to. On the way out nobody is left to tell, and what failed before was told by the event that failed;
# cudaGetLastError() clears an error that was told.
ENDING = {"cudaGetLastError", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaStreamDestroy", "cudaEventDestroy",
          "cudaGraphDestroy", "cudaGraphExecDestroy", "cudaHostUnregister", "cudaFreeHost", "cudaFree"}
# In a launcher the error of such a call waits for exec_cuda_launched(), which every launcher ends with.
BEFORE_A_LAUNCH = {"cudaGetDevice", "cudaDeviceGetAttribute", "cudaFuncSetAttribute", "cudaLaunchKernelEx",
                   "cudaOccupancyMaxActiveBlocksPerMultiprocessor"}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
CALL = re.compile(r"\b(?:cuda|cublas|nccl)[A-Z]\w*\s*\(|\bcu[A-Z]\w*\s*\(|\bc->(?:reserve|unreserve|create|release|map|set_access|unmap"
                  r"|granularity|memory|words)\s*\(")
FUNCTION = re.compile(r"^(?!#|\s|/|typedef|struct\s+\w+\s*\{)[^;{}=]*?\b(\w+)\s*\([^;{}]*\)\s*\n?\{\n(.*?)^\}", re.M | re.S)
LAUNCH = re.compile(r"<<<|\bcudaLaunchKernelEx\s*\(")


def sources(*patterns):
    for pattern in patterns:
        for path in sorted(REPO.glob(pattern)):
            yield path, COMMENT.sub("", path.read_text(encoding="utf-8"))


class CudaCalls(EbbtideTest):
    hosts = ("kernels/exec_cuda.c", "kernels/set_cuda.c", "vmm/driver_cuda*.c", "stages/link_ipc*.c", "stages/link_nccl*.c",
             "stages/bin/stage_cuda.c", "tools/bench/card_cuda.c")

    def dropped(self, text):
        """Calls that stand as statements of their own, and those cast to void."""
        for match in CALL.finditer(text):
            before = text[:match.start()].rstrip()
            name = re.match(r"[\w>-]+", match[0])[0]
            if before.endswith("(void)"):
                yield name, "void"
            elif before.endswith((";", "{", "}", "else")) or re.search(r"\b(?:if|for|while)\s*\([^;{}]*\)\Z", before):
                if not re.search(r"(?:if|while)\s*\(\Z", before):
                    yield name, "silent"

    def test_no_result_is_dropped_but_on_the_way_out(self):
        n_calls = 0
        for path, text in sources(*self.hosts):
            n_calls += len(CALL.findall(text))
            wrong = [(name, how) for name, how in self.dropped(text) if how == "silent" or name not in ENDING]
            self.assertEqual(wrong, [], path.relative_to(REPO))
        self.assertGreater(n_calls, 60, "the pattern no longer finds the calls")

    def test_what_a_launcher_drops_waits_for_the_check_of_its_launch(self):
        for path, text in sources("kernels/*.cu", "kernels/*.cuh"):
            wrong = [(name, how) for name, how in self.dropped(text) if how == "silent" or name not in BEFORE_A_LAUNCH]
            self.assertEqual(wrong, [], path.relative_to(REPO))

    def functions(self, text):
        """Name, whether it returns nothing, body."""
        return [(m[1], re.search(rf"\bvoid\s+{m[1]}\s*\(", m[0]) is not None, m[2]) for m in FUNCTION.finditer(text)]

    def helpers(self, functions):
        """Names of those that launch, return nothing and leave the check to who calls them; and what a launch looks like then."""
        found, launches = set(), LAUNCH
        while True:
            more = {name for name, is_void, body in functions
                    if is_void and "exec_cuda_launched(" not in body and launches.search(body)}
            if more == found:
                return found, launches
            found = more
            launches = re.compile(LAUNCH.pattern + r"|\b(?:" + "|".join(sorted(found)) + r")\s*(?:<[^;()]*>)?\s*\(")

    def test_every_launch_is_checked_by_the_function_that_makes_it_or_by_all_that_call_it(self):
        shared = self.functions("\n".join(text for _, text in sources("kernels/*.cuh")))
        self.assertLessEqual({"launch", "overlap_launch", "cluster_launch", "row_launch"}, self.helpers(shared)[0])
        n_checked = 0
        for path, text in sources("kernels/*.cu"):
            own = self.functions(text)
            _, launches = self.helpers(shared + own)
            launching = [(name, is_void, "exec_cuda_launched(" in body) for name, is_void, body in own if launches.search(body)]
            self.assertEqual([name for name, is_void, checks in launching if not checks and not is_void], [], path.name)
            n_checked += sum(checks for _, _, checks in launching)
        self.assertGreater(n_checked, 20, "the pattern no longer finds the launches")

    def test_a_debug_build_checks_every_launch(self):
        cmake = (REPO / "cmake" / "cuda.cmake").read_text(encoding="utf-8")
        self.assertIn("$<$<CONFIG:Debug>:EBBTIDE_CHECK_LAUNCHES>", cmake)
        text = (REPO / "kernels" / "exec_cuda.c").read_text(encoding="utf-8")
        self.assertRegex(text, r"launch_checked\(s, code_of\(cudaGetLastError\(\)\)\)")
        self.assertRegex(text, r"launch_checked\(s, code_of\(cudaGraphLaunch\(")


if __name__ == "__main__":
    unittest.main()
