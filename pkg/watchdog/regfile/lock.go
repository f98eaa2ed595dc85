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

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
)

// takeLock takes the lock of one half, or says who holds it. The lock is flock's, so that it ends
// with the process however that ends; the file beside it stays, since removing it would let two
// processes lock two different files of the same name.
func takeLock(path string, half fault.Half) (*os.File, error) {
	name := path + "." + half.String()
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("the %s half is served by %s already: %w", half, holder(file), ErrInUse)
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), file.Close())
	}
	// Who holds it is for people, and for a recovery daemon that comes later; a lock without it is as good.
	_ = self().writeTo(file)
	return file, nil
}

func holder(file *os.File) string {
	h, err := readHolder(file)
	if err != nil {
		return "another process"
	}
	return fmt.Sprintf("process %d", h.PID)
}

// Holder is the process that serves a half of a register file, as it has said itself.
type Holder struct {
	PID   int
	Start uint64 // StartTime of it; 0: it did not know
	// Space is the PID namespace that PID is of, as PIDNamespace gives it; 0: it did not know. In containers a half and the one
	// that takes over from it have the same PID more often than not.
	Space uint64
	// Tests is what it has said of its self-test: see NoteTests.
	Tests string
}

// self is the calling process.
func self() Holder {
	h := Holder{PID: os.Getpid(), Space: PIDNamespace()}
	h.Start, _ = StartTime(h.PID)
	return h
}

// Same says whether two are one process. What either does not know of itself tells nothing apart: versions before have no Space.
func (h Holder) Same(o Holder) bool {
	return h.PID == o.PID && (h.Start == o.Start || h.Start == 0 || o.Start == 0) && !h.Elsewhere(o.Space)
}

// Elsewhere says whether its PID means nothing in a PID namespace, for it is of another one.
func (h Holder) Elsewhere(space uint64) bool { return h.Space != 0 && space != 0 && h.Space != space }

// PIDNamespace returns what the kernel calls the PID namespace of this process, its inode; 0: not known. It is a namespace's own
// as long as that exists.
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

// Proven is what a half says of its self-test that has passed.
const Proven = "proven"

// append appends the lines of a holder. The second one is not read by versions before it, and names the process again: what stands
// there may be left of another's.
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

// writeTo writes over what stands there, and only then cuts off what is left of that: on a full disk there is room for what is
// there, and none for what was cut off before.
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
	line, under, _ := strings.Cut(string(b), "\n") // under it may stand what is left of the one before
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
		h.Space, _ = strconv.ParseUint(space, 10, 64) // 0 of what is none
	}
	return h, err
}

// maxTests bounds what NoteTests notes, in bytes.
const maxTests = 200

// NoteTests tells the recovery daemon, by the lock's file, what has become of this half's self-test: Proven once it has passed
// since the half was started, else one line that says what is wrong.
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

// LastHolder returns the process that took the lock of a half last, whether it still holds it or not.
func LastHolder(path string, half fault.Half) (Holder, error) {
	name := path + "." + half.String()
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

// HolderOf returns the process that holds the lock of a half, and false where none does. It tries the lock for a moment to
// know: whoever would start that half must not do so at the same time.
func HolderOf(path string, half fault.Half) (Holder, bool, error) {
	name := path + "." + half.String()
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

// StartTime returns when a process was started, in clock ticks since the machine was: with the process id it names a process
// for good. To execute another program does not change it.
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

// StatFields returns what /proc/PID/stat says of a process, from the third field on, its state: before it is the name of the
// program in parentheses, which may hold anything.
func StatFields(pid int) ([]string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])), nil
}
