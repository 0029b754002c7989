// A block that one process names is mapped by another; what cannot be shared or had is one error,
// and leaves nothing behind.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>

#include "engine/live/sharing.hpp"
#include "engine/tests/check.hpp"
#include "engine/tests/fake_driver/fake_driver.hpp"

using namespace tenure;
using namespace tenure::live;

namespace {

constexpr Bytes memory = GiB;
constexpr Bytes sizes[] = {1000, 30 * MiB + 512, 300 * MiB};

struct Task {  // what the owner sends to the borrower
    char name[256];
    Bytes offset;
    Bytes size;
    unsigned char before;
    unsigned char after;
};
struct Report {
    char text[256];
};

Options options_of(const Settings& settings) {
    Options options;
    options.settings = settings;
    return options;
}

void fill(unsigned char* block, Bytes size, unsigned char mark) {
    std::memset(block, mark, static_cast<std::size_t>(size));
}

bool holds(const unsigned char* block, Bytes size, unsigned char mark) {
    return block[0] == mark &&
           std::memcmp(block, block + 1, static_cast<std::size_t>(size) - 1) == 0;
}

// Borrows what it is told of, checks every byte and leaves a mark of its own.
int borrow_all(int owner) {
    Front front(options_of({}), {});
    front.free(front.allocate(1000, 0, 0), 0);
    const std::int64_t objects = fake_driver_objects();
    Task task{};
    while (read(owner, &task, sizeof task) == sizeof task) {
        Report report{"as it was"};
        try {
            const BorrowedBlock borrowed(front, task.name, 0);
            auto* block = static_cast<unsigned char*>(borrowed.data()) + task.offset;
            if (!holds(block, task.size, task.before)) std::strcpy(report.text, "other contents");
            fill(block, task.size, task.after);
        } catch (const UsageError& error) {
            std::strncpy(report.text, error.what(), sizeof report.text - 1);
        }
        if (fake_driver_objects() != objects) std::strcpy(report.text, "something is left");
        if (write(owner, &report, sizeof report) != sizeof report) return 1;
    }
    return fake_driver_violations() == 0 ? testing::result() : 1;
}

// The other process's report on a task.
std::string ask(int borrower, const SharedBlock& shared, Bytes size, unsigned char before) {
    Task task{"", shared.offset, size, before, static_cast<unsigned char>(before + 1)};
    std::strncpy(task.name, shared.name.c_str(), sizeof task.name - 1);
    Report report{"no report"};
    CHECK_EQUAL(write(borrower, &task, sizeof task), static_cast<ssize_t>(sizeof task));
    CHECK_EQUAL(read(borrower, &report, sizeof report), static_cast<ssize_t>(sizeof report));
    return report.text;
}

void test_blocks_are_one_in_both_processes(Front& front, int borrower) {
    unsigned char mark = 1;
    for (const Bytes size : sizes) {
        auto* before = front.allocate(3 * MiB + 1000, 0, 0);  // what is shared begins inside
        auto* block = static_cast<unsigned char*>(front.allocate(size, 0, 0));
        fill(block, size, mark);
        const SharedBlock shared = share(front, block);
        CHECK_EQUAL(ask(borrower, shared, size, mark), "as it was");
        CHECK(holds(block, size, static_cast<unsigned char>(mark + 1)));
        CHECK_EQUAL(share(front, block).name, shared.name);
        CHECK_EQUAL(ask(borrower, shared, size, static_cast<unsigned char>(mark + 1)), "as it was");
        front.free(block, 0);
        front.free(before, 0);
        ++mark;
    }
}

void test_what_is_not_live_is_refused(Front& front) {
    void* block = front.allocate(1000, 0, 0);
    front.free(block, 0);
    CHECK_THROWS(share(front, block), UsageError, "not a live block");
}

void test_damaged_names_are_refused(Front& front) {
    auto borrow = [&](const std::string& name) { BorrowedBlock(front, name, 0); };
    for (const char* name : {"", "c0123", "tenure-segment-0 00", "tenure-segment-1"})
        CHECK_THROWS(borrow(name), UsageError, "does not allocate through this version of tenure");
    const std::string begin = "tenure-segment-1 ";
    for (std::string rest : {"", "00ff", "zz"})
        CHECK_THROWS(borrow(rest.insert(0, begin)), UsageError, "the name is damaged");
    const std::int64_t objects = fake_driver_objects();
    CHECK_THROWS(borrow(begin + std::string(128, '0')), UsageError, "does not open");
    CHECK_EQUAL(fake_driver_objects(), objects);
}

int own(int borrower) {
    Front front(options_of({}), {});
    test_blocks_are_one_in_both_processes(front, borrower);
    test_what_is_not_live_is_refused(front);
    test_damaged_names_are_refused(front);
    CHECK_EQUAL(fake_driver_violations(), 0);
    return testing::result();
}

int refuse_chunks(const Settings& settings) {
    Front front(options_of(settings), {});
    void* block = front.allocate(1000, 0, 0);
    CHECK_THROWS(share(front, block), UsageError, "it is mapped in chunks");
    front.free(block, 0);
    return testing::result();
}

void in_a_process(const std::function<int()>& act) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int result = act();
        std::fflush(stdout);
        _exit(result);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0);
}

// Owner and borrower, each in a process that has used no device yet.
void share_and_borrow() {
    in_a_process([] {
        int ends[2];
        CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
        const pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            _exit(borrow_all(ends[1]));
        }
        close(ends[1]);
        own(ends[0]);
        close(ends[0]);
        int status = 0;
        waitpid(child, &status, 0);
        CHECK_EQUAL(status, 0);
        return testing::result();
    });
}

}  // namespace

int main() {
    setenv("TENURE_DRIVER_LIBRARY", FAKE_DRIVER_LIBRARY, 1);
    setenv("FAKE_DRIVER_MEMORY", std::to_string(memory).c_str(), 1);
    share_and_borrow();
    Settings settings;
    settings.expandable_segments = true;
    in_a_process([&] { return refuse_chunks(settings); });
    settings.rules = Rules::elastic;
    in_a_process([&] { return refuse_chunks(settings); });
    return testing::result();
}
