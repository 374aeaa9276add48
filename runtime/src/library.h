// A shared library opened at run time.
#pragma once

#include <string>

namespace dsak {

class Library {
 public:
  Library() = default;
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // False, with the loader's reason, when it cannot be loaded.
  bool open(const std::string& name, std::string* reason);
  // Only if the process has loaded it already.
  bool open_loaded(const std::string& name);

  template <class Function>
  bool find(const char* symbol, Function** out) const {
    *out = reinterpret_cast<Function*>(address(symbol));
    return *out != nullptr;
  }
  const std::string& name() const { return name_; }

 private:
  void* address(const char* symbol) const;
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace dsak
