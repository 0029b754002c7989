// Text as the pickle protocols write it, into UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace tenure {

// True when the bytes are UTF-8 as they stand.
bool is_utf8(std::string_view bytes);

// Python writes lone surrogates (undecodable file names) as three bytes that are not UTF-8; each
// becomes U+FFFD, so that what is read can be printed. Throws Refusal for anything else invalid.
std::string mend_utf8(std::string_view bytes);

// Protocol 0: "V" writes \uXXXX, \UXXXXXXXX and Latin-1; "S" writes a quoted literal.
std::string decode_unicode_line(std::string_view line);
std::string decode_quoted_line(std::string_view line);

}  // namespace tenure
