# Cross compilation to 64-bit ARM with Debian's gcc-aarch64-linux-gnu and libc6-dev-arm64-cross; tests run under
# qemu-user:
#   cmake -S . -B build/neon -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DRNNKERN_PYTHON=OFF -DRNNKERN_C_TESTS=ON
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
