package halfcore

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lofamo/lofamo/pkg/fault"
)

const panicLog = `Panic#1 Part1
<6>[    3.120000] sysrq: Trigger a crash
<0>[    3.123456] Kernel panic - not syncing: sysrq triggered crash
<4>[    3.123460] CPU: 0 PID: 1 Comm: init Not tainted 6.1.0 #1
`

const oopsLog = `Oops#1 Part1
<1>[   12.1] BUG: unable to handle page fault for address: 0000000000001234
<1>[   12.1] Oops: 0002 [#1] PREEMPT SMP NOPTI
`

func TestBootEndIsClassified(t *testing.T) {
	logs := func(all ...string) (out []KernelDeath) {
		for _, log := range all {
			if d, ok := ReadKernelLog([]byte(log)); ok {
				out = append(out, d)
			}
		}
		return out
	}
	panicked := LastBoot{End: BootPanic, Detail: "Kernel panic - not syncing: sysrq triggered crash"}
	for name, tt := range map[string]struct {
		give BootTraces
		want LastBoot
	}{
		"no trace":              {BootTraces{}, LastBoot{End: BootPowerLoss}},
		"shutdown in order":     {BootTraces{Orderly: true, Down: true, Reason: "reboot"}, LastBoot{End: BootOrderly, Detail: "reboot"}},
		"daemon stopped before": {BootTraces{Orderly: true}, LastBoot{End: BootUnknown, Detail: "the agent had been stopped before"}},
		"panic":                 {BootTraces{Deaths: logs(panicLog)}, panicked},
		"panic in the shutdown": {BootTraces{Orderly: true, Down: true, Deaths: logs(panicLog)}, panicked},
		"panic after an oops":   {BootTraces{Deaths: logs(oopsLog, panicLog)}, panicked},
		"oops, then reset": {
			BootTraces{Deaths: logs(oopsLog)}, LastBoot{End: BootOops, Detail: "BUG: unable to handle page fault for address: 0000000000001234"},
		},
		"oops, then reboot": {BootTraces{Orderly: true, Down: true, Deaths: logs(oopsLog)}, LastBoot{End: BootOrderly}},
		"watchdog":          {BootTraces{Watchdog: "watchdog0 (i6300ESB)"}, LastBoot{End: BootWatchdog, Detail: "watchdog0 (i6300ESB)"}},
		"hard lockup and watchdog": {
			BootTraces{Watchdog: "watchdog0", Deaths: logs("<0>[1.0] watchdog: Watchdog detected hard LOCKUP on cpu 1\n")},
			LastBoot{End: BootLockup, Detail: "watchdog: Watchdog detected hard LOCKUP on cpu 1"},
		},
		"soft lockup, which may have passed, and watchdog": {
			BootTraces{Watchdog: "watchdog0", Deaths: logs("<0>[1.0] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [sh:1]\n")},
			LastBoot{End: BootWatchdog, Detail: "watchdog0"},
		},
		"hard lockup after a soft one": {
			BootTraces{Watchdog: "watchdog0", Deaths: logs("[1.0] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [sh:1]\n" +
				"[9.0] NMI watchdog: Watchdog detected hard LOCKUP on cpu 0\n")},
			LastBoot{End: BootLockup, Detail: "NMI watchdog: Watchdog detected hard LOCKUP on cpu 0"},
		},
		"hard lockup": {
			BootTraces{Deaths: logs("<0>[1.0][    C1] NMI watchdog: Watchdog detected hard LOCKUP on cpu 1\n")},
			LastBoot{End: BootLockup, Detail: "NMI watchdog: Watchdog detected hard LOCKUP on cpu 1"},
		},
		"hard lockup that passed": {
			BootTraces{Orderly: true, Down: true, Deaths: logs("[1.0] watchdog: Watchdog detected hard LOCKUP on cpu 1\n")},
			LastBoot{End: BootOrderly},
		},
		"panic for a hard lockup": {
			BootTraces{Watchdog: "watchdog0", Deaths: logs("[1.0] NMI watchdog: Watchdog detected hard LOCKUP on cpu 0\n" +
				"[1.1] Kernel panic - not syncing: Hard LOCKUP\n")},
			LastBoot{End: BootLockup, Detail: "Kernel panic - not syncing: Hard LOCKUP"},
		},
		"panic for a hard lockup in the shutdown": {
			BootTraces{Orderly: true, Down: true, Deaths: logs("[1.1] Kernel panic - not syncing: Hard LOCKUP\n")},
			LastBoot{End: BootLockup, Detail: "Kernel panic - not syncing: Hard LOCKUP"},
		},
		"panic for a soft lockup": {
			BootTraces{Deaths: logs("[1.1] Kernel panic - not syncing: softlockup: hung tasks\n")},
			LastBoot{End: BootPanic, Detail: "Kernel panic - not syncing: softlockup: hung tasks"},
		},
		"garbage": {BootTraces{Deaths: logs("\x00\xff\xfe[[[[<<<", "")}, LastBoot{End: BootPowerLoss}},
		"error quoted by a program": {
			BootTraces{Deaths: logs("<6>[1.0] app: Kernel panic - not syncing: no\n")}, LastBoot{End: BootPowerLoss},
		},
	} {
		if got := ClassifyBoot(tt.give); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

// TestKernelsOwnLineIsRecognized: the wording of lockups differs between versions of Linux, and between architectures.
func TestKernelsOwnLineIsRecognized(t *testing.T) {
	for line, want := range map[string]BootEnd{
		"NMI watchdog: Watchdog detected hard LOCKUP on cpu 1":                         BootLockup, // kernel/watchdog_hld.c before Linux 6.5
		"watchdog: Watchdog detected hard LOCKUP on cpu 1":                             BootLockup, // kernel/watchdog.c of Linux 6.12
		"watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3":                       BootLockup, // kernel/watchdog.c after Linux 6.12
		"watchdog: CPU 1 detected hard LOCKUP on other CPUs 0":                         BootLockup, // arch/powerpc, as the next two
		"watchdog: CPU 0 self-detected hard LOCKUP @ plpar_hcall_norets_notrace+0x1c0": BootLockup,
		"watchdog: CPU 0 Hard LOCKUP":                                                  BootLockup,
		"Watchdog detected hard LOCKUP on cpu 1":                                       BootLockup, // arch/sparc/kernel/nmi.c, as the next one
		"Kernel panic - not syncing: Watchdog detected hard LOCKUP on cpu 1":           BootPanic,
		"Kernel panic - not syncing: Hard LOCKUP":                                      BootPanic,  // it ends in a panic
		"watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [sh:1]":                     BootLockup, // kernel/watchdog.c
		"NMI watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [sh:1]":                 BootLockup, // Linux 3.10
		"BUG: soft lockup - CPU#0 stuck for 22s! [sh:1]":                               BootLockup, // Linux 2.6
		"BUG: kernel NULL pointer dereference, address: 0000000000000000":              BootOops,
		"watchdog: CPU 1 became unstuck":                                               0,
		"NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.":              0,
		"app: watchdog: Watchdog detected hard LOCKUP on cpu 1":                        0,
	} {
		if got, _ := ReadKernelLog([]byte("<0>[   12.345678] " + line + "\n")); got.End != want || want != 0 && got.Line != line {
			t.Errorf("%s: got %+v, want %s", line, got, want)
		}
	}
}

// TestCopiesOfKernelLogHaveOneKey: systemd moves records of pstore elsewhere and joins their parts. That is not a second death.
func TestCopiesOfKernelLogHaveOneKey(t *testing.T) {
	first, _ := ReadKernelLog([]byte(panicLog))
	copied, ok := ReadKernelLog([]byte("[   12.1] BUG: x\n[    3.123456] Kernel panic - not syncing: sysrq triggered crash"))
	if !ok || first != copied {
		t.Errorf("%+v, then %+v", first, copied)
	}
	if later, _ := ReadKernelLog([]byte(strings.Replace(panicLog, "3.123456", "4.123456", 1))); later.Key == first.Key {
		t.Error("a later panic has the same key")
	}
}

// TestLastBootFitsRecord: a kernel's text full of characters that JSON writes in six bytes leaves the record readable.
func TestLastBootFitsRecord(t *testing.T) {
	detail := strings.Repeat("<", 200)
	r := RecoveryRecord{Half: fault.HalfHost, State: GivenUp, Reason: strings.Repeat("&", 150),
		Last:     &Recovery{Cause: Cause{Kind: Hung, Detail: detail[:100]}},
		LastBoot: &LastBoot{End: BootPanic, Detail: CleanText(detail), Boot: 7}}
	b, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeRecovery(b)
	if err != nil || got.LastBoot == nil || got.LastBoot.End != BootPanic {
		t.Errorf("%+v, %v", got.LastBoot, err)
	}
}

// FuzzKernelLog: for every log of a dead kernel, its end is one of the ends, in text that may be sent.
func FuzzKernelLog(f *testing.F) {
	f.Add([]byte(panicLog), "")
	f.Add([]byte(oopsLog), "watchdog0")
	f.Add([]byte("<<<[[[\x00]"), "\x00")
	f.Fuzz(func(t *testing.T, log []byte, watchdog string) {
		var deaths []KernelDeath
		if d, ok := ReadKernelLog(log); ok {
			deaths = append(deaths, d)
		}
		b := ClassifyBoot(BootTraces{Deaths: deaths, Watchdog: watchdog})
		if !b.End.Valid() || !utf8.ValidString(b.Detail) || len(b.Detail) > fault.MaxDetail || b.Detail != CleanText(b.Detail) {
			t.Errorf("%q: %+v", log, b)
		}
	})
}
