// Runs a fuzz target without libFuzzer: every file of the corpus, then mutations of them.
//
//     fuzz_NAME [-max_total_time=SECONDS] [-seed=N] FILE_OR_FOLDER...
//
// The same arguments as libFuzzer's, and the same meaning. The input that kills the process is
// kept as `crash-input` in the first folder given.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;

constexpr unsigned longest_run = 25;            // seconds for one input
constexpr std::size_t longest_input = 1 << 16;  // bytes of a mutated input

Bytes running;           // the input being tried, for the crash file
std::string crash_path;  // empty: no folder was given

void keep_running_input() {
    if (crash_path.empty()) return;
    std::ofstream(crash_path, std::ios::binary)
        .write(reinterpret_cast<const char*>(running.data()),
               static_cast<std::streamsize>(running.size()));
    std::fprintf(stderr, "the input is kept in %s\n", crash_path.c_str());
}

void die_of_signal(int number) {
    std::fprintf(stderr, number == SIGALRM ? "one input ran too long\n" : "the target aborted\n");
    keep_running_input();
    _exit(1);
}

void run(Bytes input) {
    running = std::move(input);
    alarm(longest_run);
    // A copy of exact size: the sanitizer then sees a read of even one byte too many.
    const Bytes exact(running);
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    alarm(0);
}

Bytes read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
}

std::vector<Bytes> read_corpus(const std::vector<std::string>& arguments) {
    std::vector<Bytes> corpus;
    for (const std::string& argument : arguments) {
        if (!std::filesystem::is_directory(argument)) {
            corpus.push_back(read_file(argument));
            continue;
        }
        for (const auto& entry : std::filesystem::directory_iterator(argument)) {
            if (entry.is_regular_file()) corpus.push_back(read_file(entry.path()));
        }
    }
    return corpus;
}

// One change: flip a bit, overwrite, insert, erase or repeat a piece, cut, or splice another input.
void mutate(Bytes& bytes, const std::vector<Bytes>& corpus, std::mt19937_64& random) {
    const auto below = [&](std::size_t limit) {
        return random() % std::max<std::size_t>(limit, 1);
    };
    const auto at = [&](std::size_t i) { return bytes.begin() + static_cast<std::ptrdiff_t>(i); };
    if (bytes.empty()) bytes.push_back(static_cast<std::uint8_t>(random()));
    const std::size_t start = below(bytes.size());
    const std::size_t count = std::min(1 + below(16), bytes.size() - start);
    const Bytes piece(at(start), at(start + count));
    static constexpr std::uint8_t edges[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    switch (below(7)) {
        case 0:
            bytes[start] ^= static_cast<std::uint8_t>(1u << below(8));
            break;
        case 1:
            bytes[start] = static_cast<std::uint8_t>(random());
            break;
        case 2:
            std::fill(at(start), at(start + count), edges[below(std::size(edges))]);
            break;
        case 3:
            bytes.erase(at(start), at(start + count));
            break;
        case 4:
            bytes.insert(at(below(bytes.size())), piece.begin(), piece.end());
            break;
        case 5:
            bytes.resize(start);
            break;
        default: {
            const Bytes& other = corpus[below(corpus.size())];
            const auto from = other.begin() + static_cast<std::ptrdiff_t>(below(other.size()));
            bytes.resize(start);
            bytes.insert(bytes.end(), from, other.end());
        }
    }
    if (bytes.size() > longest_input) bytes.resize(longest_input);
}

}  // namespace

int main(int argc, char** argv) {
    double seconds = 0;
    std::uint64_t seed = 1;
    std::vector<std::string> paths;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        const std::string value =
            argument.substr(std::min(argument.find('=') + 1, argument.size()));
        if (argument.starts_with("-max_total_time=")) {
            seconds = std::stod(value);
        } else if (argument.starts_with("-seed=")) {
            seed = std::stoull(value);
        } else if (!argument.starts_with("-")) {
            paths.push_back(argument);
            if (crash_path.empty() && std::filesystem::is_directory(argument)) {
                crash_path = argument + "/crash-input";
            }
        }
    }
    signal(SIGALRM, die_of_signal);
    signal(SIGABRT, die_of_signal);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(keep_running_input);
#endif
    std::vector<Bytes> corpus = read_corpus(paths);
    for (const Bytes& input : corpus) run(input);
    const std::size_t seeds = corpus.size();
    if (corpus.empty()) corpus.emplace_back();

    std::mt19937_64 random(seed);
    std::uint64_t tried = 0;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    for (; Clock::now() < end; ++tried) {
        Bytes input = corpus[random() % corpus.size()];
        for (std::uint64_t changes = 1 + random() % 8; changes > 0; --changes) {
            mutate(input, corpus, random);
        }
        run(std::move(input));
    }
    std::printf("%zu corpus inputs, %llu mutations: nothing found\n", seeds,
                static_cast<unsigned long long>(tried));
}
