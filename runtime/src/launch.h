// Launching an op, and the questions that stop short of it.
#pragma once

#include "call.h"
#include "runtime.h"

namespace dsak {

// The launch path: no allocation, lock, string or lookup once the op was launched with these shapes on this thread.
void launch(dsak_op& op, const Arguments& in, void* workspace, void* stream);
size_t workspace_bytes(dsak_op& op, const Arguments& in);
void infer(dsak_op& op, const Arguments& in, dsak_output* outputs, size_t* count);
void preload(dsak_op& op, DeviceKey key);
void preload_all(dsak_runtime& runtime, DeviceKey key);  // every op that has a pack for the device
std::string explain(dsak_op& op, const char* target, const Arguments& in);

}  // namespace dsak
