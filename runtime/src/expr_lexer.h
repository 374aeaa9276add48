// Words, numbers and signs of an expression.
#pragma once

#include <cstddef>
#include <string_view>

namespace dsak {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

struct Token {
  enum Kind { kEnd, kInteger, kDecimal, kText, kWord, kSign, kBad } kind;
  std::string_view text;  // of kText without the quotes
  size_t begin, end;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) { next(); }
  const Token& peek() const { return token_; }
  Token take() {
    const Token t = token_;
    next();
    return t;
  }
  bool is(std::string_view text) const {
    return (token_.kind == Token::kSign || token_.kind == Token::kWord) && token_.text == text;
  }
  bool accept(std::string_view text) {
    if (!is(text)) return false;
    next();
    return true;
  }
  std::string_view source() const { return source_; }

 private:
  void emit(Token::Kind kind, size_t begin, size_t end) {
    const bool quoted = kind == Token::kText;
    token_ = {kind, source_.substr(begin + quoted, end - begin - 2 * quoted), begin, end};
    at_ = end;
  }

  template <class Predicate>
  size_t span(size_t from, Predicate p) const {
    while (from < source_.size() && p(source_[from])) ++from;
    return from;
  }

  void next() {
    at_ = span(at_, [](char c) { return c == ' ' || c == '\t' || c == '\n'; });
    if (at_ == source_.size()) return emit(Token::kEnd, at_, at_);
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (is_letter(c)) return emit(Token::kWord, at_, span(at_, [](char x) { return is_letter(x) || is_digit(x); }));
    if (c == '\'' || c == '"') return quoted(c);
    for (std::string_view two : {"//", "==", "!=", "<=", ">="})
      if (source_.substr(at_, 2) == two) return emit(Token::kSign, at_, at_ + 2);
    const bool sign = std::string_view("+-*%<>(),.").find(c) != std::string_view::npos;
    emit(sign ? Token::kSign : Token::kBad, at_, at_ + 1);
  }

  void number() {
    size_t end = span(at_, is_digit);
    bool decimal = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      decimal = true;
      end = span(end + 1, is_digit);
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < source_.size() && (source_[digits] == '+' || source_[digits] == '-')) ++digits;
      const size_t stop = span(digits, is_digit);
      if (stop > digits) decimal = true, end = stop;
    }
    const bool runs_on = end < source_.size() && (is_letter(source_[end]) || source_[end] == '.');
    emit(runs_on ? Token::kBad : decimal ? Token::kDecimal : Token::kInteger, at_, end);
  }

  void quoted(char quote) {
    const size_t end = span(at_ + 1, [](char x) { return is_letter(x) || is_digit(x); });
    const bool closed = end < source_.size() && source_[end] == quote && end > at_ + 1;
    emit(closed ? Token::kText : Token::kBad, at_, closed ? end + 1 : at_ + 1);
  }

  std::string_view source_;
  size_t at_ = 0;
  Token token_{};
};

}  // namespace dsak
