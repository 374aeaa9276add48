// What the launch path knows of an op's parameters, parsed once from the manifest's declaration.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

namespace dsak::python {

constexpr int kMaxParams = 32;

enum class Kind : uint8_t { kInput, kOutput, kFloat, kInt, kChoice };

struct Param {
  PyObject* name;  // interned, so that keywords compare by pointer
  Kind kind;
  bool optional;       // an input that may be None, an output that is written only when asked for, a scalar with a default
  std::string text;    // the name in UTF-8
  std::string wanted;  // "a bf16 tensor [T, H, 512]", for errors
  std::string dtypes;  // "bf16|e4m3fn", tensors only
};

// Parse the JSON of dsak_signature. False with a Python error set.
bool parse_signature(const char* op, const char* json, std::vector<Param>* params);

}  // namespace dsak::python
