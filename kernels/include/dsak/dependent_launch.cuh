// Programmatic dependent launch: blocks may come to the SMs while the kernel before on the stream still runs, so that what it
// costs to launch them hides behind its end.
//
// A kernel that calls `wait` is launched so: the build reads it off the PTX. Every thread must call it before the first access
// to global memory, a write included: until then the kernels before may not be done with it.
#pragma once

namespace dsak::dependent_launch {

// Until all kernels before on the stream are done and their writes visible. Returns at once where there is nothing to wait for.
__device__ __forceinline__ void wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the next kernel's blocks come once all blocks of this one have started; they wait in turn.
__device__ __forceinline__ void release() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace dsak::dependent_launch
