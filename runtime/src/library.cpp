#include "library.h"

#include <dlfcn.h>

namespace dsak {

Library::~Library() {
  if (handle_ != nullptr) dlclose(handle_);
}

bool Library::open(const std::string& name, std::string* reason) {
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const char* why = dlerror();
    *reason = why != nullptr ? why : "unknown reason";
    return false;
  }
  name_ = name;
  return true;
}

bool Library::open_loaded(const std::string& name) {
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle_ != nullptr) name_ = name;
  return handle_ != nullptr;
}

void* Library::address(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace dsak
