// In place of kernels/include/dsak/tensor_copy.cuh: copies through a map, which land later.
#pragma once
#include "dsak/types.cuh"

namespace dsak::tensor_copy {

struct Map {
  const u8* rows;
  i64 stride;
  i32 count;
  u32 width;
  // Of a map of boxes: 128 bytes of `box` rows.
  i64 outer_stride = 0;
  i32 outer = 0;
  u32 box = 0;
};

inline u32 swizzled(u32 address) { return address ^ (address >> 3 & 0x70); }

inline void copy_row(u32 destination, const Map* map, i32 index, u32 barrier, u64) {
  if (destination % 128 != 0 || map->width % 128 != 0) std::abort();
  auto* to = machine::memory(destination, map->width);
  auto* counts = &machine::mbarrier(barrier);
  const Map rows = *map;
  machine::land_later([=] {
    for (u32 piece = 0; piece < rows.width / 16; ++piece) {
      u8* place = to + (swizzled(destination + piece * 16) - destination);
      if (0 <= index && index < rows.count)
        std::memcpy(place, rows.rows + index * rows.stride + piece * 16, 16);
      else
        std::memset(place, 0, 16);
    }
    counts->complete(rows.width);
  });
}

// A box's 16-byte pieces that the tensor has, and their places in shared memory.
template <class Piece>
inline void for_each_piece(const Map& map, i32 line, i32 row, i32 outer, u32 address, u8* shared, const Piece& piece) {
  if (address % 1024 != 0 || outer < 0 || outer >= map.outer) std::abort();
  for (u32 i = 0; i < map.box * 8; ++i) {
    const i32 r = row + static_cast<i32>(i / 8), b = line * 128 + static_cast<i32>(i % 8 * 16);
    if (r < 0 || r >= map.count || b < 0 || b + 16 > static_cast<i32>(map.width)) std::abort();
    piece(const_cast<u8*>(map.rows) + outer * map.outer_stride + r * map.stride + b,
          shared + (swizzled(address + i * 16) - address));
  }
}

inline void copy_box(u32 destination, const Map* map, i32 line, i32 row, i32 outer, u32 barrier, u64) {
  auto* to = machine::memory(destination, map->box * 128);
  auto* counts = &machine::mbarrier(barrier);
  machine::land_later([=, boxes = *map] {
    for_each_piece(boxes, line, row, outer, destination, to, [](u8* global, u8* shared) { std::memcpy(shared, global, 16); });
    counts->complete(boxes.box * 128);
  });
}

inline void store_box(const Map* map, i32 line, i32 row, i32 outer, u32 source) {
  auto* from = machine::memory(source, map->box * 128);
  auto& open = machine::self().open_stores;
  if (open == nullptr) open = std::make_shared<u32>(0);
  ++*open;
  machine::land_later([=, boxes = *map, group = open] {
    for_each_piece(boxes, line, row, outer, source, from, [](u8* global, u8* shared) { std::memcpy(global, shared, 16); });
    --*group;
  });
}
inline void commit() { machine::self().stores.push_back(std::move(machine::self().open_stores)); }

template <int pending>
inline void wait_read() {
  const auto& stores = machine::self().stores;
  machine::wait_until([&stores] {
    for (std::size_t i = 0; i + pending < stores.size(); ++i)
      if (*stores[i] != 0) return false;
    return true;
  });
}
inline void wait_written() { wait_read<0>(); }

}  // namespace dsak::tensor_copy
