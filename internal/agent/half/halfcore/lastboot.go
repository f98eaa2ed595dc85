package halfcore

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"regexp"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// BootEnd is how a boot of a machine ended. The zero value is none.
type BootEnd uint8

// The ends, as in lofamov1.BootEnd.
const (
	BootPanic     BootEnd = iota + 1 // the kernel panicked
	BootOops                         // the kernel reported an oops, and the boot did not end in order
	BootLockup                       // the kernel found that a processor had locked up, and the boot did not end in order
	BootWatchdog                     // a hardware watchdog reset the machine
	BootOrderly                      // a shutdown or reboot in order
	BootPowerLoss                    // power loss, or a reset without a trace
	BootUnknown                      // the daemon had been stopped before, and nothing left a trace
)

var bootEndNames = [...]string{BootPanic: "panic", BootOops: "oops", BootLockup: "lockup", BootWatchdog: "watchdog", BootOrderly: "orderly",
	BootPowerLoss: "power loss", BootUnknown: "unknown"}

// Valid reports whether e is one of the ends.
func (e BootEnd) Valid() bool { return e >= BootPanic && e <= BootUnknown }

// String returns the end's name.
func (e BootEnd) String() string {
	if !e.Valid() {
		return fmt.Sprintf("BootEnd(%d)", uint8(e))
	}
	return bootEndNames[e]
}

// LastBoot describes how the machine's previous boot ended.
type LastBoot struct {
	End    BootEnd `json:"end"`
	Detail string  `json:"detail,omitempty"` // for people: see CleanText
	Boot   uint32  `json:"boot"`             // part of the present boot's identity; never 0
}

// Status returns the message for the supervisors; nil for nil.
func (b *LastBoot) Status() *lofamov1.LastBoot {
	if b == nil {
		return nil
	}
	return &lofamov1.LastBoot{End: lofamov1.BootEnd(b.End), Detail: CleanText(b.Detail), Boot: b.Boot}
}

// KernelDeath is the gravest error of its own that a kernel's log holds.
type KernelDeath struct {
	End  BootEnd // BootPanic, BootLockup or BootOops
	Line string  // the kernel's line, for people
	// Key identifies the line with its time stamp. Two copies of one log have the same key.
	Key uint64
}

// BootTraces are what the former boot left behind.
type BootTraces struct {
	Orderly bool   // the daemon ended in order
	Reason  string // why, for people; only with Orderly
	Down    bool   // the machine was going down when the daemon ended
	// Deaths are the kernel's own errors in logs that are newer than the former boot.
	Deaths   []KernelDeath
	Watchdog string // name of the watchdog that says it reset the machine; empty: none does
}

// ClassifyBoot returns how the former boot ended, without Boot. The kernel's own words count more than the order in which the
// daemon ended, because a kernel may panic during a shutdown. An oops alone ends no boot, so a boot that ended in order is orderly.
//
// A hard lockup counts more than the watchdog that ended it: it is the cause. A soft lockup does not, because it may have passed long
// before. If a kernel panics because of a hard lockup, the boot ended by the lockup.
func ClassifyBoot(t BootTraces) LastBoot {
	var worst KernelDeath
	for _, d := range t.Deaths {
		if d.graver(worst) {
			worst = d
		}
	}
	switch {
	case worst.End == BootPanic && worst.lockedHard():
		return LastBoot{End: BootLockup, Detail: worst.Line}
	case worst.End == BootPanic:
		return LastBoot{End: BootPanic, Detail: worst.Line}
	case t.Watchdog != "" && worst.lockedHard():
		return LastBoot{End: BootLockup, Detail: worst.Line}
	case t.Watchdog != "":
		return LastBoot{End: BootWatchdog, Detail: CleanText(t.Watchdog)}
	case t.Orderly && t.Down:
		return LastBoot{End: BootOrderly, Detail: CleanText(t.Reason)}
	case worst.End != 0:
		return LastBoot{End: worst.End, Detail: worst.Line}
	case t.Orderly:
		return LastBoot{End: BootUnknown, Detail: "the agent had been stopped before"}
	}
	return LastBoot{End: BootPowerLoss}
}

// graver reports whether d explains the end of a boot better than by; the zero KernelDeath explains nothing.
func (d KernelDeath) graver(by KernelDeath) bool { return d.rank() > by.rank() }

func (d KernelDeath) rank() int {
	switch {
	case d.End == BootPanic:
		return 4
	case d.lockedHard():
		return 3
	}
	return [...]int{0: 0, BootOops: 1, BootLockup: 2}[d.End]
}

// lockedHard reports whether the kernel says that a processor took no interrupts.
func (d KernelDeath) lockedHard() bool { return hardLockup.MatchString(d.Line) }

// hardLockup is the line about a hard lockup, and that of a panic for one (hardlockup_panic). Linux has changed the wording, and powerpc
// has its own.
var hardLockup = regexp.MustCompile(
	`^(Kernel panic - not syncing: |(NMI )?watchdog: )?(CPU ?\d+:? )?((Watchdog |self-)?detected )?[Hh]ard LOCKUP\b`)

// deaths are the kernel's lines about its own errors. The first that matches counts.
var deaths = []struct {
	line *regexp.Regexp
	end  BootEnd
}{
	{regexp.MustCompile("^Kernel panic - not syncing"), BootPanic},
	{hardLockup, BootLockup},
	{regexp.MustCompile(`^((NMI )?watchdog: )?BUG: soft lockup\b`), BootLockup},
	{regexp.MustCompile("^(Oops:|BUG:|general protection fault|kernel BUG at|Internal error:)"), BootOops}, // the last one on arm64
}

// ReadKernelLog returns the gravest error in a log of a kernel, which may hold anything. Of two that are equally grave, the first
// counts. The text after a line's time stamp must begin with the error: programs may write to the kernel's log, and a quoted
// error later in a line is not the kernel's own. Without an error it returns false.
func ReadKernelLog(log []byte) (KernelDeath, bool) {
	var worst KernelDeath
	for raw := range bytes.Lines(log) {
		line := withoutLevel(raw)
		text := bytes.TrimSpace(withoutTime(line))
		for _, d := range deaths {
			if !d.line.Match(text) {
				continue
			}
			if found := (KernelDeath{End: d.end, Line: CleanText(string(text))}); found.graver(worst) {
				h := fnv.New64a()
				_, _ = h.Write(line)
				found.Key = h.Sum64()
				worst = found
			}
			break
		}
	}
	return worst, worst.End != 0
}

// withoutLevel returns a line of a kernel's log without spaces around it and without its level: "<0>[   12.345678] text".
func withoutLevel(line []byte) []byte {
	line = bytes.TrimSpace(line)
	if rest, ok := bytes.CutPrefix(line, []byte("<")); ok {
		if i := bytes.IndexByte(rest[:min(len(rest), 4)], '>'); i > 0 {
			return rest[i+1:]
		}
	}
	return line
}

// withoutTime returns a line without its time stamp, and without the processor or thread that some kernels add.
func withoutTime(line []byte) []byte {
	for range 2 {
		rest, ok := bytes.CutPrefix(line, []byte("["))
		i := bytes.IndexByte(rest[:min(len(rest), 32)], ']')
		if !ok || i < 0 || len(bytes.Trim(rest[:i], " .0123456789TC")) > 0 {
			break
		}
		line = bytes.TrimLeft(rest[i+1:], " ")
	}
	return line
}
