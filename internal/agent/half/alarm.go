package half

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Alarm is the one timer of a half. Its methods other than Wait and Close are called under the half's mutex.
//
// It rings by a timer of the kernel (timerfd). A timer of the Go runtime would cost three wake-ups instead of one: the
// runtime waits in whole milliseconds and so wakes twice, and its monitor thread wakes as well.
type Alarm struct {
	Wake time.Time // wake-up time from the machine's last step
	at   time.Time // when the timer rings; zero: it has rung, and that is being dealt with
	arm  func(time.Duration)
	more []rhythm // see AlsoRing

	timer     *os.File
	raw       syscall.RawConn
	closeOnce sync.Once
	closeErr  error
}

// NewAlarm returns an alarm that does not ring before Set.
func NewAlarm() (*Alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timer of the half: %w", err)
	}
	a := &Alarm{timer: os.NewFile(uintptr(fd), "timer")}
	if a.raw, err = a.timer.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("timer of the half: %w", err), a.timer.Close())
	}
	var in unix.ItimerSpec
	var within time.Duration
	set := func(fd uintptr) {
		in.Value = unix.NsecToTimespec(int64(within))
		_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&in)), 0, 0, 0)
	}
	a.arm = func(d time.Duration) {
		within = max(d, 1) // 0 would disarm it
		_ = a.raw.Control(set)
	}
	return a, nil
}

// Wait waits until the alarm rings. It returns an error after Close, or if the timer cannot ring any more.
func (a *Alarm) Wait() error {
	if err := a.raw.Read(takeRing); err != nil {
		return fmt.Errorf("timer of the half: %w", err)
	}
	return nil
}

// takeRing reports whether the timer of a descriptor has rung since the last call.
func takeRing(fd uintptr) bool {
	var rings uint64
	_, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&rings)), unsafe.Sizeof(rings))
	return errno == 0
}

// Close ends Wait. Any goroutine may call it, repeatedly.
func (a *Alarm) Close() error {
	a.closeOnce.Do(func() { a.closeErr = a.timer.Close() })
	return a.closeErr
}

// minRest is the time to the next ring of a machine that asks for the present or the past: one that does so repeatedly
// must not spin.
const minRest = 500 * time.Microsecond

// Rang notes that the timer has rung, so that Set arms it again.
func (a *Alarm) Rang() { a.at = time.Time{} }

// rhythm is a series of times: first, and one each period after it.
type rhythm struct {
	first  time.Time
	period time.Duration
}

// after returns the first time of the series after now.
func (r rhythm) after(now time.Time) time.Time {
	if now.Before(r.first) {
		return r.first
	}
	return r.first.Add(now.Sub(r.first).Truncate(r.period) + r.period)
}

// AlsoRing makes the alarm ring at first too, and each period after it. If a ticker of the Go runtime expires at these
// times, it costs only a third: the ring wakes the half before the runtime does. The runtime is up to 1 ms late, and
// until then its monitor thread looks for work every 20 µs.
func (a *Alarm) AlsoRing(first time.Time, period time.Duration) {
	a.more = append(a.more, rhythm{first, period})
}

// Set arms the timer for the machine's wake-up time, or for an earlier time of AlsoRing. A timer that rings by then
// stays unchanged, even if it has just rung and the half has not handled that yet. So packets that arrive between two
// ticks and change nothing cause no system call and no delay.
func (a *Alarm) Set(now time.Time) {
	t := a.Wake
	if !t.After(now) {
		t = now.Add(minRest)
	}
	for _, r := range a.more {
		if also := r.after(now); also.Before(t) {
			t = also
		}
	}
	if !a.at.IsZero() && !t.Before(a.at) {
		return
	}
	a.at = t
	a.arm(t.Sub(now))
}
