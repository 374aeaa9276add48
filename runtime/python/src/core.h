// What the Python side reads of the core beyond the C interface; both are built and linked together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsa_kernels.h"

namespace dsak::python {

// Whether some candidate of some pack wants scratch memory. Asking dsak_workspace costs as much as a launch, so ops that never
// do are told apart once.
bool needs_workspace(const dsak_op& op);

// The DLPack device type of a target's vendor; 0 when no pack of the op is for it.
int32_t device_type(const dsak_op& op, std::string_view target);

// Names of the ops, and the vendors of the packs ("nvidia", "amd"), without the search for devices that dsak_info makes.
std::vector<std::string> op_names(const dsak_runtime& runtime);
std::vector<std::string> vendors(const dsak_runtime& runtime);

}  // namespace dsak::python
