// The engine's tests: plain programs that say what failed, and where, and go on.
#pragma once

#include <cstdio>
#include <sstream>
#include <string>

namespace tenure::testing {

inline int failures = 0;

inline void failed(const char* file, int line, const std::string& what) {
    std::printf("%s:%d: %s\n", file, line, what.c_str());
    ++failures;
}

template <typename Left, typename Right>
void check_equal(const Left& left, const Right& right, const char* text, const char* file,
                 int line) {
    if (left == right) return;
    std::ostringstream out;
    out << text << ": " << left << " is not " << right;
    failed(file, line, out.str());
}

// What main returns.
inline int result() {
    if (failures > 0) std::printf("%d checks failed\n", failures);
    return failures > 0 ? 1 : 0;
}

}  // namespace tenure::testing

#define CHECK(condition)                                                      \
    do {                                                                      \
        if (!(condition)) {                                                   \
            ::tenure::testing::failed(__FILE__, __LINE__, "not " #condition); \
        }                                                                     \
    } while (false)

#define CHECK_EQUAL(left, right) \
    ::tenure::testing::check_equal((left), (right), #left, __FILE__, __LINE__)

// The expression throws this type, with a message that contains the text.
#define CHECK_THROWS(expression, type, text)                                                      \
    do {                                                                                          \
        bool thrown = false;                                                                      \
        try {                                                                                     \
            (void)(expression);                                                                   \
        } catch (const type& error) {                                                             \
            thrown = true;                                                                        \
            if (std::string(error.what()).find(text) == std::string::npos) {                      \
                ::tenure::testing::failed(__FILE__, __LINE__,                                     \
                                          std::string("message is: ") + error.what());            \
            }                                                                                     \
        }                                                                                         \
        if (!thrown) ::tenure::testing::failed(__FILE__, __LINE__, "no " #type ": " #expression); \
    } while (false)
