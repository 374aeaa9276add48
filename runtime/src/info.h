// What a runtime holds, as JSON.
#pragma once

#include <string>

#include "runtime.h"

namespace dsak {

std::string info(const dsak_runtime& runtime);

}  // namespace dsak
