// numpy columns in and out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>
#include <utility>
#include <vector>

namespace tenure {

template <typename T>
using Column =
    nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
std::span<const T> span_of(const Column<T>& column) {
    return {column.data(), column.size()};
}

// A read-only array that owns the column: nothing is copied.
template <typename T>
nanobind::object to_array(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    nanobind::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nanobind::cast(nanobind::ndarray<nanobind::numpy, const T, nanobind::ndim<1>>(
        kept->data(), {kept->size()}, owner));
}

}  // namespace tenure
