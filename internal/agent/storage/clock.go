package storage

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Clock returns the time of a clock of the kernel (clock_gettime) in ns, and 0 if there is no such clock. The call
// never blocks, so it bypasses the Go scheduler (RawSyscall): an ordinary call after a rest wakes the runtime's monitor
// thread, and the DNP half reads a clock in most of its ticks.
func Clock(id int32) int64 {
	var ts unix.Timespec
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(id), uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0
	}
	return ts.Nano()
}

// SinceBoot returns CLOCK_BOOTTIME in ns: a copy is of one boot.
func SinceBoot() int64 { return Clock(unix.CLOCK_BOOTTIME) }
