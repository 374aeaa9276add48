#include "dsak/q8/combine.cuh"
