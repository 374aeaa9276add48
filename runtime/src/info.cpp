#include "info.h"

#include <nlohmann/json.hpp>

#include "discover.h"

namespace dsak {
namespace {

using Json = nlohmann::ordered_json;

const char* vendor_key(Vendor v) { return v == Vendor::kNvidia ? "nvidia" : "amd"; }

Json pack_json(const Pack& pack) {
  const Manifest& m = pack.manifest();
  return {{"directory", pack.directory()},         {"manifest_sha256", pack.digest()},
          {"schema_version", m.schema_version},    {"package", Json::parse(m.package)},
          {"toolchain", Json::parse(m.toolchain)}, {"target", m.target.name},
          {"vendor", vendor_key(m.target.vendor)}, {"arch", m.target.arch},
          {"min_driver", m.target.min_driver},     {"objects", m.objects.size()}};
}

Json op_json(const dsak_op& op) {
  Json targets = Json::array();
  for (const PackPlan& p : op.plans) targets.push_back(p.plan->target->name);
  const OpDecl& decl = *op.any_plan().op;
  return {{"name", op.name}, {"doc", decl.doc}, {"targets", std::move(targets)}, {"params", Json::parse(decl.params_json)}};
}

}  // namespace

std::string info(const dsak_runtime& runtime) {
  Json out = {{"version", dsak_version()}, {"abi_version", dsak_abi_version()}};
  for (const char* key : {"packs", "ops", "devices"}) out[key] = Json::array();
  for (const auto& p : runtime.packs()) out["packs"].push_back(pack_json(*p));
  for (const auto& op : runtime.ops()) out["ops"].push_back(op_json(*op));
  for (const SeenDevice& d : discover())
    out["devices"].push_back({{"vendor", vendor_key(d.vendor)}, {"name", d.name}, {"arch", d.arch}});
  return out.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace dsak
