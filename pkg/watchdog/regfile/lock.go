package regfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
)

// LockFile returns the path of the lock of one half of a register file.
func LockFile(path string, half fault.Half) string { return path + "." + half.String() }

// takeLock takes the lock of one half, or returns its holder in the error. It uses flock, so that the lock ends with
// the process in any case. The file beside it stays, since removing it would let two processes lock two different files
// of the same name.
func takeLock(path string, half fault.Half) (*os.File, error) {
	name := LockFile(path, half)
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := TryLock(file); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("the %s half is served by %s already: %w", half, holder(file), ErrInUse)
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), file.Close())
	}
	// The holder's name is for people and for the recovery daemon; the lock works without it.
	_ = self().writeTo(file)
	return file, nil
}

// lockTries is how often TryLock tries, a millisecond apart. A probe such as HolderOf takes a free lock for some microseconds. TryLock
// counts tries instead of time, because a stalled machine delays the probe too.
const lockTries = 200

// TryLock takes the exclusive lock of a file, or returns unix.EWOULDBLOCK if another process holds it for longer than a
// probe does.
func TryLock(file *os.File) error {
	for tries := 1; ; tries++ {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || tries == lockTries {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func holder(file *os.File) string {
	h, err := readHolder(file)
	if err != nil {
		return "another process"
	}
	return fmt.Sprintf("process %d", h.PID)
}

// Holder is the process that serves a half of a register file, according to its own entry.
type Holder struct {
	PID   int
	Start uint64 // its StartTime; 0: unknown
	// Space is the PID namespace of PID, as PIDNamespace returns it; 0: unknown. In containers a half and its
	// successor usually have the same PID.
	Space uint64
	// Tests is its statement on its self-test: see NoteTests.
	Tests string
}

// self returns the calling process.
func self() Holder {
	h := Holder{PID: os.Getpid(), Space: PIDNamespace()}
	h.Start, _ = StartTime(h.PID)
	return h
}

// Same reports whether two holders are one process. Unknown values do not distinguish them: earlier versions have no
// Space.
func (h Holder) Same(o Holder) bool {
	return h.PID == o.PID && (h.Start == o.Start || h.Start == 0 || o.Start == 0) && !h.Elsewhere(o.Space)
}

// Elsewhere reports whether its PID is meaningless in a PID namespace because it belongs to another one.
func (h Holder) Elsewhere(space uint64) bool { return h.Space != 0 && space != 0 && h.Space != space }

// Gone reports whether the process has certainly ended. It asks the kernel: no process has that PID, another one has
// it, or the process has ended and only its parent does not know yet. A process of another PID namespace, or one whose
// start time is not known, is never certainly gone.
func (h Holder) Gone() bool {
	if h.PID <= 0 || h.Start == 0 || h.Space == 0 || h.Elsewhere(PIDNamespace()) {
		return false
	}
	fd, err := unix.PidfdOpen(h.PID, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer func() { _ = unix.Close(fd) }()
	// From here on the PID belongs to the descriptor's process as long as that lives.
	if start, err := StartTime(h.PID); err == nil && start != h.Start {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} // readable once all its threads have ended
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLIN != 0
}

// Exists reports whether this PID namespace has the process, even if it has ended and only its parent does not know yet.
func (h Holder) Exists() bool {
	if h.PID <= 0 || h.Start == 0 || h.Elsewhere(PIDNamespace()) {
		return false
	}
	start, err := StartTime(h.PID)
	return err == nil && start == h.Start
}

// PIDNamespace returns the inode of this process's PID namespace; 0 if unknown. The inode is unique as long as the
// namespace exists.
var PIDNamespace = sync.OnceValue(func() uint64 {
	name, err := os.Readlink("/proc/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return 0
	}
	space, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(name, "pid:["), "]"), 10, 64)
	if err != nil {
		return 0
	}
	return space
})

// Proven is a half's statement that its self-test has passed.
const Proven = "proven"

// append appends the lines of a holder. Earlier versions do not read the second line. It names the process again,
// because it may be a remainder of an earlier holder's entry.
func (h Holder) append(b []byte) []byte {
	b = fmt.Appendf(b, "%d %d", h.PID, h.Start)
	if h.Tests != "" {
		b = append(append(b, ' '), h.Tests...)
	}
	b = append(b, '\n')
	if h.Space != 0 {
		b = fmt.Appendf(b, "%d %d in %d\n", h.PID, h.Start, h.Space)
	}
	return b
}

// writeTo overwrites the old content and only then truncates the rest: a full disk has room for the existing blocks,
// but none for blocks that were freed first.
func (h Holder) writeTo(file interface {
	io.WriterAt
	Truncate(size int64) error
}) error {
	b := h.append(nil)
	if _, err := file.WriteAt(b, 0); err != nil {
		return err
	}
	return file.Truncate(int64(len(b)))
}

func readHolder(file *os.File) (Holder, error) {
	b, err := io.ReadAll(io.LimitReader(file, 120+maxTests))
	if err != nil {
		return Holder{}, err
	}
	line, under, _ := strings.Cut(string(b), "\n") // a remainder of an earlier entry may follow
	pid, start, _ := strings.Cut(strings.TrimSpace(line), " ")
	var h Holder
	start, h.Tests, _ = strings.Cut(start, " ")
	if h.PID, err = strconv.Atoi(pid); err != nil {
		return Holder{}, fmt.Errorf("given %.20q: want a process", b)
	}
	if start != "" {
		h.Start, err = strconv.ParseUint(start, 10, 64)
	}
	under, _, _ = strings.Cut(under, "\n")
	if space, ok := strings.CutPrefix(under, fmt.Sprintf("%d %d in ", h.PID, h.Start)); ok {
		h.Space, _ = strconv.ParseUint(space, 10, 64) // 0 if absent
	}
	return h, err
}

// maxTests limits the note of NoteTests, in bytes.
const maxTests = 200

// NoteTests writes the result of this half's self-test to the lock's file, for the recovery daemon: Proven once it has
// passed since the half was started, otherwise one line with the fault.
func (f *File) NoteTests(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock == nil {
		return fmt.Errorf("note tests: register file %s: %w", f.path, ErrClosed)
	}
	h := self()
	h.Tests = strings.Join(strings.Fields(what[:min(len(what), maxTests)]), " ")
	if err := h.writeTo(f.lock); err != nil {
		return fmt.Errorf("note tests: register file %s: %w", f.path, err)
	}
	return nil
}

// LastHolder returns the process that last took the lock of a half, whether it still holds the lock or not.
func LastHolder(path string, half fault.Half) (Holder, error) {
	name := LockFile(path, half)
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Holder{}, fmt.Errorf("lock of the %s half: %w", half, err)
	}
	defer func() { _ = file.Close() }()
	h, err := readHolder(file)
	if err != nil {
		return Holder{}, fmt.Errorf("lock %s: %w", name, err)
	}
	return h, nil
}

// HolderOf returns the process that holds the lock of a half, and false if there is none. It takes a free lock for some
// microseconds; a half that starts then waits (TryLock).
func HolderOf(path string, half fault.Half) (Holder, bool, error) {
	name := LockFile(path, half)
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return Holder{}, false, nil
	}
	if err != nil {
		return Holder{}, false, fmt.Errorf("lock of the %s half: %w", half, err)
	}
	defer func() { _ = file.Close() }()
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case err == nil:
		return Holder{}, false, nil
	case !errors.Is(err, unix.EWOULDBLOCK):
		return Holder{}, false, fmt.Errorf("lock %s: %w", name, err)
	}
	h, err := readHolder(file)
	if err != nil {
		return Holder{}, true, fmt.Errorf("lock %s: %w", name, err)
	}
	return h, true, nil
}

// StartTime returns when a process was started, in clock ticks since the machine's boot. Together with the process id
// it identifies a process for good. Executing another program does not change it.
func StartTime(pid int) (uint64, error) {
	f, err := StatFields(pid)
	if err != nil {
		return 0, err
	}
	const startTime = 22 - 3
	if len(f) <= startTime {
		return 0, fmt.Errorf("stat of process %d: given %d fields", pid, len(f))
	}
	return strconv.ParseUint(f[startTime], 10, 64)
}

// StatFields returns the fields of /proc/PID/stat from the third one, the state. The name of the program before it, in
// parentheses, may contain anything.
func StatFields(pid int) ([]string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])), nil
}
