#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "error.h"
#include "expr.h"
#include "expr_code.h"
#include "expr_lexer.h"

namespace dsak {

int64_t Strings::intern(std::string_view text) {
  for (size_t i = 0; i < texts_.size(); ++i)
    if (texts_[i] == text) return static_cast<int64_t>(i);
  texts_.emplace_back(text);
  return static_cast<int64_t>(texts_.size() - 1);
}

namespace {

bool is_keyword(std::string_view word) {
  for (std::string_view k : {"and", "or", "not", "if", "else", "in", "True", "False", "None", "is", "lambda", "await"})
    if (word == k) return true;
  return false;
}

struct Function {
  std::string_view name;
  Code code;
  int arity;  // -1: two or more
};
constexpr Function kFunctions[] = {
    {"min", kMin, -1}, {"max", kMax, -1}, {"cdiv", kCeilDiv, 2}, {"pow2", kPow2, 1}, {"float", kToFloat, 1}};

}  // namespace

// Recursive descent; each rule returns the postfix code of what it read.
class Parser {
 public:
  Parser(std::string_view text, const Names& names, Strings& strings) : in_(text), names_(names), strings_(strings) {}

  Expr parse() {
    Fragment f = choice();
    if (in_.peek().kind != Token::kEnd) refuse();
    if (f.depth > kMaxDepth) fail(DSAK_ERR_PACK_SCHEMA, "found an expression deeper than ", kMaxDepth, ": ", in_.source());
    Expr e;
    e.text_ = in_.source();
    e.variables_ = std::move(variables_);
    const Expr::Instruction& first = f.code[0];
    if (f.code.size() > 1) {
      e.form_ = Expr::Form::kProgram;
      e.program_ = std::move(f.code);
    } else if (first.code == kLoad) {
      e.form_ = Expr::Form::kSlot;
      e.slot_ = first.operand;
      e.constant_.type = first.type;
    } else {
      e.constant_ = load(&first.immediate, 0, first.type);
    }
    return e;
  }

 private:
  struct Fragment {
    std::vector<Expr::Instruction> code;
    int depth = 0;
  };

  [[noreturn]] void refuse() const {
    const Token& t = in_.peek();
    const std::string found = t.kind == Token::kEnd ? "the end" : cat('\'', in_.source().substr(t.begin, 12), '\'');
    fail(DSAK_ERR_PACK_SCHEMA, "found ", found, " at column ", t.begin + 1, " of \"", in_.source(),
         "\", which is outside the expression grammar");
  }

  void expect(std::string_view text) {
    if (!in_.accept(text)) refuse();
  }

  static Fragment constant(Type type, int64_t word) { return {{{kPush, type, 0, word}}, 1}; }

  // b after a; `held` values of a stay on the stack while b runs.
  static void add(Fragment& a, Fragment b, int held) {
    a.depth = std::max(a.depth, held + b.depth);
    a.code.insert(a.code.end(), b.code.begin(), b.code.end());
  }
  static void add(Fragment& a, Code code, int operand = 0) { a.code.push_back({code, Type::kInt, operand, 0}); }
  static int size(const Fragment& f) { return static_cast<int>(f.code.size()); }

  Fragment choice() {
    if (++nesting_ > 100) fail(DSAK_ERR_PACK_SCHEMA, "found an expression nested too deeply: ", in_.source());
    Fragment a = disjunction();
    if (in_.accept("if")) {
      Fragment c = disjunction();
      expect("else");
      Fragment b = choice();
      add(c, kJumpFalse, size(a) + 1);
      add(c, std::move(a), 0);
      add(c, kJump, size(b));
      add(c, std::move(b), 0);
      a = std::move(c);
    }
    --nesting_;
    return a;
  }

  Fragment disjunction() {
    return logical("or", kOrJump, [this] { return logical("and", kAndJump, [this] { return negation(); }); });
  }

  template <class Operand>
  Fragment logical(std::string_view word, Code jump, Operand operand) {
    Fragment first = operand();
    if (!in_.is(word)) return first;
    std::vector<Fragment> parts{std::move(first)};
    while (in_.accept(word)) parts.push_back(operand());
    Fragment out = std::move(parts.back());
    add(out, kTruth);
    for (size_t i = parts.size() - 1; i-- > 0;) {
      Fragment head = std::move(parts[i]);
      add(head, jump, size(out));
      add(head, std::move(out), 0);
      out = std::move(head);
    }
    return out;
  }

  Fragment negation() {
    if (!in_.is("not")) return comparison();
    if (++nesting_ > 100) fail(DSAK_ERR_PACK_SCHEMA, "found an expression nested too deeply: ", in_.source());
    in_.take();
    Fragment a = negation();
    --nesting_;
    add(a, kNot);
    return a;
  }

  bool at_comparison(Code* code) const {
    constexpr std::pair<std::string_view, Code> kSigns[] = {{"==", kEq}, {"!=", kNe}, {"<", kLt},
                                                            {"<=", kLe}, {">", kGt},  {">=", kGe}};
    for (const auto& [sign, c] : kSigns)
      if (in_.is(sign)) {
        *code = c;
        return true;
      }
    return false;
  }

  Fragment comparison() {
    Fragment a = sum();
    Code code{};
    if (at_comparison(&code)) {
      in_.take();
      add(a, sum(), 1);
      add(a, code);
    } else if (in_.accept("in")) {
      membership(a);
    }
    if (at_comparison(&code) || in_.is("in")) refuse();  // no chains
    return a;
  }

  void membership(Fragment& a) {
    expect("(");
    add(a, kInStart);
    bool comma = false;
    do {
      add(a, choice(), 2);
      add(a, kInStep);
      if (in_.is(")")) break;
      expect(",");
      comma = true;
    } while (!in_.is(")"));
    if (!comma) refuse();  // (x) is no tuple
    expect(")");
    add(a, kInEnd);
  }

  Fragment sum() {
    Fragment a = product();
    while (in_.is("+") || in_.is("-")) {
      const Code code = in_.take().text == "+" ? kAdd : kSub;
      add(a, product(), 1);
      add(a, code);
    }
    return a;
  }

  Fragment product() {
    Fragment a = unary();
    while (in_.is("*") || in_.is("//") || in_.is("%")) {
      const std::string_view sign = in_.take().text;
      add(a, unary(), 1);
      add(a, sign == "*" ? kMul : sign == "%" ? kMod : kFloorDiv);
    }
    return a;
  }

  Fragment unary() {
    if (!in_.is("-")) return atom();
    if (++nesting_ > 100) fail(DSAK_ERR_PACK_SCHEMA, "found an expression nested too deeply: ", in_.source());
    in_.take();
    Fragment a = unary();
    --nesting_;
    add(a, kNegate);
    return a;
  }

  Fragment atom() {
    const Token t = in_.peek();
    switch (t.kind) {
      case Token::kInteger: return integer(t);
      case Token::kDecimal: return decimal(t);
      case Token::kText: in_.take(); return constant(Type::kString, strings_.intern(t.text));
      case Token::kWord: return word(t);
      default: break;
    }
    expect("(");
    Fragment a = choice();
    expect(")");
    return a;
  }

  Fragment integer(const Token& t) {
    int64_t v = 0;
    const auto [end, code] = std::from_chars(t.text.data(), t.text.data() + t.text.size(), v);
    const bool octal = t.text.size() > 1 && t.text[0] == '0';
    if (code != std::errc() || end != t.text.data() + t.text.size() || octal) refuse();
    in_.take();
    return constant(Type::kInt, v);
  }

  Fragment decimal(const Token& t) {
    // The JSON parser reads numbers the same way in every locale.
    const nlohmann::json j = nlohmann::json::parse(t.text, nullptr, false);
    if (!j.is_number_float()) refuse();
    const double v = j.get<double>();
    int64_t word = 0;
    std::memcpy(&word, &v, sizeof word);
    in_.take();
    return constant(Type::kFloat, word);
  }

  Fragment word(const Token& t) {
    if (is_keyword(t.text)) refuse();
    in_.take();
    if (in_.is("(")) return call(t.text);
    if (!in_.accept(".")) return variable(std::string(t.text));
    const std::string_view field = in_.peek().text;
    const bool ok = field == "dtype" || (field.size() == 2 && (field[0] == 's' || field[0] == 'd') && is_digit(field[1]));
    if (!ok || in_.peek().kind != Token::kWord) refuse();
    in_.take();
    return variable(cat(t.text, '.', field));
  }

  Fragment variable(std::string name) {
    int slot = 0;
    Type type = Type::kInt;
    if (!names_.find(name, &slot, &type)) fail(DSAK_ERR_PACK_SCHEMA, "found unknown name ", name, " in \"", in_.source(), '"');
    const bool seen =
        std::any_of(variables_.begin(), variables_.end(), [&](const Expr::Variable& v) { return v.name == name; });
    if (!seen) variables_.push_back({std::move(name), slot, type});
    return {{{kLoad, type, slot, 0}}, 1};
  }

  Fragment call(std::string_view name) {
    expect("(");
    if (name == "has") {
      const Token t = in_.peek();
      if (t.kind != Token::kWord || is_keyword(t.text)) refuse();
      in_.take();
      expect(")");
      return variable(cat("has(", t.text, ')'));
    }
    const Function* f =
        std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const Function& x) { return x.name == name; });
    if (f == std::end(kFunctions)) refuse();
    Fragment out = choice();
    if (f->arity < 0) add(out, kNumber);
    int count = 1;
    while (in_.accept(",")) {
      if (in_.is(")")) break;
      add(out, choice(), 1);
      ++count;
      if (f->arity != 1) add(out, f->code);
    }
    if (f->arity < 0 ? count < 2 : count != f->arity) refuse();
    expect(")");
    if (f->arity == 1) add(out, f->code);
    return out;
  }

  Lexer in_;
  const Names& names_;
  Strings& strings_;
  std::vector<Expr::Variable> variables_;
  int nesting_ = 0;
};

Expr Expr::parse(std::string_view text, const Names& names, Strings& strings) { return Parser(text, names, strings).parse(); }

namespace {

// Parentheses beyond `levels` are left to the parser, which refuses deep nesting in words.
std::vector<std::string> split(std::string_view text, int levels) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  std::vector<std::string> parts;
  Lexer in(text);
  int depth = 0;
  size_t begin = 0;
  bool wrapped = in.is("("), splits = true;
  for (; in.peek().kind != Token::kEnd && in.peek().kind != Token::kBad; in.take()) {
    if (depth == 0 && (in.is("or") || in.is("if"))) splits = false;
    if (depth == 0 && in.is("and")) {
      parts.emplace_back(text.substr(begin, in.peek().begin - begin));
      begin = in.peek().end;
    }
    if (in.is("(")) ++depth;
    if (in.is(")")) --depth;
    if (depth == 0 && in.peek().end < text.size()) wrapped = false;
  }
  if (!splits || levels == 0) return {std::string(text)};
  if (wrapped && parts.empty() && depth == 0) return split(text.substr(1, text.size() - 2), levels - 1);
  if (parts.empty()) return {std::string(text)};
  parts.emplace_back(text.substr(begin));
  std::vector<std::string> flat;
  for (const std::string& p : parts)
    for (std::string& q : split(p, levels - 1)) flat.push_back(std::move(q));
  return flat;
}

}  // namespace

std::vector<std::string> conjuncts(std::string_view text) { return split(text, 100); }

}  // namespace dsak
