// _engine.read_snapshot: a snapshot's bytes into a dict of numpy columns.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "engine/errors.hpp"
#include "engine/python/bindings.hpp"
#include "engine/python/columns.hpp"
#include "engine/snapshots/snapshot_columns.hpp"

namespace nb = nanobind;

namespace tenure {
namespace {

// The bytes of a Python object, held as long as this lives.
class Bytes {
  public:
    explicit Bytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) nb::raise_python_error();
    }
    ~Bytes() { PyBuffer_Release(&buffer_); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    std::span<const std::byte> span() const {
        return {static_cast<const std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
    }

  private:
    Py_buffer buffer_;
};

// A binary Python stream; the GIL is taken for each piece.
class StreamSource final : public ByteSource {
  public:
    explicit StreamSource(nb::handle stream) : stream_(stream) {}

    std::size_t read(std::span<std::byte> into) override {
        const nb::gil_scoped_acquire acquire;
        const Bytes piece(stream_.attr("read")(into.size()));
        const std::span<const std::byte> bytes = piece.span();
        if (bytes.size() > into.size()) throw UsageError("read(n) gave more than n bytes");
        std::copy(bytes.begin(), bytes.end(), into.begin());
        return bytes.size();
    }

  private:
    nb::handle stream_;
};

template <typename Number>
nb::object array(std::vector<Number>& column) {
    return to_array(std::move(column));
}

nb::dict events_dict(EventColumns& events) {
    nb::dict out;
    out["action"] = array(events.action);
    out["address"] = array(events.address);
    out["size"] = array(events.size);
    out["stream"] = array(events.stream);
    out["time_us"] = array(events.time_us);
    out["stack"] = array(events.stack);
    if (!events.forward.empty()) out["forward"] = array(events.forward);
    out["pool"] = array(events.pool);
    out["metadata"] = array(events.metadata);
    out["compile_context"] = array(events.compile_context);
    return out;
}

nb::dict segments_dict(SegmentColumns& segments) {
    nb::dict out;
    out["device"] = array(segments.device);
    out["address"] = array(segments.address);
    out["size"] = array(segments.size);
    out["stream"] = array(segments.stream);
    out["large"] = array(segments.large);
    out["pool"] = array(segments.pool);
    out["expandable"] = array(segments.expandable);
    out["stack"] = array(segments.stack);
    out["block_offset"] = array(segments.block_offset);
    return out;
}

nb::dict blocks_dict(BlockColumns& blocks) {
    nb::dict out;
    out["address"] = array(blocks.address);
    out["size"] = array(blocks.size);
    out["requested"] = array(blocks.requested);
    out["state"] = array(blocks.state);
    out["stack"] = array(blocks.stack);
    return out;
}

nb::dict annotations_dict(AnnotationColumns& annotations) {
    nb::dict out;
    out["name"] = array(annotations.name);
    out["start"] = array(annotations.start);
    out["device"] = array(annotations.device);
    out["time_us"] = array(annotations.time_us);
    return out;
}

nb::object plain(const Setting& setting) {
    switch (setting.type) {
        case Setting::Type::none:
            break;
        case Setting::Type::boolean:
            return nb::bool_(setting.integer != 0);
        case Setting::Type::integer:
            return nb::int_(setting.integer);
        case Setting::Type::real:
            return nb::float_(setting.real);
        case Setting::Type::text:
            return nb::str(setting.text.c_str(), setting.text.size());
        case Setting::Type::list: {
            nb::list out;
            for (const Setting& item : setting.items) out.append(plain(item));
            return out;
        }
        case Setting::Type::dict: {
            nb::dict out;
            for (std::size_t i = 0; i + 1 < setting.items.size(); i += 2) {
                out[plain(setting.items[i])] = plain(setting.items[i + 1]);
            }
            return out;
        }
    }
    return nb::none();
}

nb::dict snapshot_dict(SnapshotColumns& columns) {
    nb::dict out, frames, stacks, keys, unknown;
    nb::list devices;
    frames["file"] = array(columns.frames.file);
    frames["line"] = array(columns.frames.line);
    frames["name"] = array(columns.frames.name);
    stacks["offset"] = array(columns.stacks.offset);
    stacks["frame"] = array(columns.stacks.frame);
    for (EventColumns& events : columns.devices) devices.append(events_dict(events));
    for (std::size_t i = 0; i < kKeys; ++i) keys[kKeyNames[i]] = bool{columns.keys[i]};
    for (const auto& [name, count] : columns.unknown_actions) unknown[nb::cast(name)] = count;
    out["strings"] = columns.strings;
    out["frames"] = frames;
    out["stacks"] = stacks;
    out["pools"] = columns.pools;
    out["devices"] = devices;
    out["segments"] = segments_dict(columns.segments);
    out["blocks"] = blocks_dict(columns.blocks);
    out["settings"] = plain(columns.settings);
    out["annotations"] = annotations_dict(columns.annotations);
    out["keys"] = keys;
    out["unknown_actions"] = unknown;
    return out;
}

SnapshotColumns read_without_gil(ByteSource& source) {
    const nb::gil_scoped_release release;
    return read_snapshot(source);
}

nb::dict read(nb::handle source) {
    SnapshotColumns columns;
    if (nb::hasattr(source, "read")) {
        StreamSource stream(source);
        columns = read_without_gil(stream);
    } else {
        const Bytes bytes(source);
        MemorySource memory(bytes.span());
        columns = read_without_gil(memory);
    }
    return snapshot_dict(columns);
}

}  // namespace

void bind_snapshots(nb::module_& m) {
    m.def("read_snapshot", &read, nb::arg("source"),
          "The columns of a snapshot's pickle, from bytes or a binary stream; runs nothing in it.");
}

}  // namespace tenure
