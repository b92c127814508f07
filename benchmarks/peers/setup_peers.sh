#!/bin/sh
# The environment of the peers that cpu_peers.py compares with, made in the folder given:
# OpenVINO in FOLDER/env, llama.cpp compiled in FOLDER/llama_cpp_python-*/vendor/llama.cpp/build.
# What is there already stays as it is. PYTHON chooses the interpreter. Measures nothing.
set -eu

folder=${1:?usage: setup_peers.sh FOLDER}
mkdir -p "$folder"
cd "$folder"

[ -x env/bin/python ] || "${PYTHON:-python3}" -m venv env
if ! [ -e env/openvino.stamp ]; then
  env/bin/python -m pip install -q torch==2.13.0 openvino openvino-genai openvino-tokenizers \
    nncf gguf sentencepiece cmake ninja
  env/bin/python -m pip install -q torch==2.13.0 optimum-intel
  # optimum-intel brings a torchvision that fits another build of torch; nothing here needs one.
  env/bin/python -c 'import torchvision' 2>/dev/null ||
    env/bin/python -m pip uninstall -q -y torchvision
  env/bin/python -c 'from optimum.intel import OVModelForCausalLM'
  touch env/openvino.stamp
fi

source=$(ls -d llama_cpp_python-*/ 2>/dev/null | tail -n 1)
if [ -z "$source" ]; then
  ls llama_cpp_python-*.tar.gz >/dev/null 2>&1 ||
    env/bin/python -m pip download -q --no-binary llama-cpp-python --no-deps llama-cpp-python -d .
  tar xzf llama_cpp_python-*.tar.gz
  source=$(ls -d llama_cpp_python-*/ | tail -n 1)
fi

PATH=$PWD/env/bin:$PATH
cd "${source}vendor/llama.cpp"
programs="llama-bench llama-speculative-simple llama-completion llama-quantize llama-server"
for program in $programs; do
  [ -x "build/bin/$program" ] || missing=yes
done
if [ "${missing:-no}" = yes ]; then
  # Its tiles of AMX end the process on some Xeons (an illegal instruction, under virtual machines).
  grep -q amx_tile /proc/cpuinfo 2>/dev/null && off="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
  cmake -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DGGML_NATIVE=ON \
    -DCMAKE_C_FLAGS="${off:-}" -DCMAKE_CXX_FLAGS="${off:-}" \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_USE_PREBUILT_UI=OFF
  # shellcheck disable=SC2086
  cmake --build build --target $programs
fi
