#include "engine/snapshots/snapshot_reader.hpp"

namespace tenure {
namespace {

enum class Field { name, stage, device, time_us, count };
constexpr std::size_t kFields = static_cast<std::size_t>(Field::count);
constexpr std::array<const char*, kFields> kNames{"name", "stage", "device", "time_us"};

constexpr int kSettingDepth = 8;  // PyTorch's are two deep
constexpr std::size_t kSettings = 10000;
constexpr std::size_t kLetters = std::size_t{1} << 20;

class SettingReader {
  public:
    explicit SettingReader(const Document& document) : document_(document) {}

    Setting read(Value value, const Place& place, int depth) {
        if (depth > kSettingDepth) refuse(place, "settings nested too deeply");
        if (++seen_ > kSettings) refuse(place, "far too many settings");
        Setting out;
        switch (value.kind()) {
            case Kind::text:
                return read_text(value, place);
            case Kind::real:
                out.type = Setting::Type::real;
                out.real = document_.real_of(value);
                return out;
            case Kind::constant:
                if (value == Value::none()) return out;
                out.type = Setting::Type::boolean;
                out.integer = value == Value::boolean(true) ? 1 : 0;
                return out;
            case Kind::list:
            case Kind::tuple:
                return read_list(value, place, depth);
            case Kind::dict:
                return read_dict(value, place, depth);
            default:
                out.type = Setting::Type::integer;
                out.integer = expect_integer(document_, value, place);
                return out;
        }
    }

  private:
    Setting read_text(Value value, const Place& place) {
        Setting out;
        out.type = Setting::Type::text;
        letters_ += document_.text_of(value).size();
        if (letters_ > kLetters) refuse(place, "settings of more than a million letters");
        out.text = document_.text_of(value);
        return out;
    }

    Setting read_list(Value value, const Place& place, int depth) {
        Setting out;
        out.type = Setting::Type::list;
        const std::span<const Value> items = document_.items_of(value);
        for (std::size_t i = 0; i < items.size(); ++i) {
            out.items.push_back(read(items[i], place.at(i), depth + 1));
        }
        return out;
    }

    Setting read_dict(Value value, const Place& place, int depth) {
        Setting out;
        out.type = Setting::Type::dict;
        const DictView dict = document_.dict_of(value);
        for (std::size_t i = 0; i < dict.size; ++i) {
            const Value key = dict.key(i);
            const Place at = place.at(i);
            if (!key.is(Kind::text) && !key.is(Kind::integer)) {
                refuse_value(document_, at, key, "a string as key");
            }
            out.items.push_back(read(key, at, depth + 1));
            out.items.push_back(read(dict.value(i), at, depth + 1));
        }
        return out;
    }

    const Document& document_;
    std::size_t seen_ = 0;
    std::size_t letters_ = 0;
};

}  // namespace

void read_settings(SnapshotReader& reader, Value settings, const Place& place) {
    if (!settings.is(Kind::dict)) refuse_value(reader.document, place, settings, "a dict");
    reader.columns.settings = SettingReader(reader.document).read(settings, place, 0);
}

void read_annotations(SnapshotReader& reader, Value annotations, const Place& place) {
    const Document& document = reader.document;
    const Value begins = reader.document.text("START");
    const Value ends = reader.document.text("END");
    RecordKind<kFields> kind(reader.document, kNames);
    AnnotationColumns& out = reader.columns.annotations;
    const std::span<const Value> items = expect_items(document, annotations, place);
    reader.take_rows(items.size(), place);
    for (std::size_t i = 0; i < items.size(); ++i) {
        const Place at = place.at(i);
        const auto record = kind.open(document, items[i], at);
        const Value stage = record.get(Field::stage);
        if (stage != begins && stage != ends) {
            refuse_value(document, record.at(Field::stage), stage, "'START' or 'END'");
        }
        const Value name = record.get(Field::name);
        expect_text(document, name, record.at(Field::name));
        out.name.push_back(reader.tables.string(name));
        out.start.push_back(stage == begins ? 1 : 0);
        out.device.push_back(
            expect_small(document, record.get(Field::device), record.at(Field::device)));
        out.time_us.push_back(
            expect_integer(document, record.get(Field::time_us), record.at(Field::time_us)));
    }
}

}  // namespace tenure
