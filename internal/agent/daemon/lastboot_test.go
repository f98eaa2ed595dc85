package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// machine is a machine whose boots a test makes up.
type machine struct {
	t           *testing.T
	root, state string
	boots       byte
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, root: t.TempDir(), state: t.TempDir()}
}

// start starts the daemon in the present boot.
func (m *machine) start() *boots {
	return lookAtBoots(m.state, m.root+"/sys", m.root, [16]byte{m.boots, 15: 1}, slog.New(slog.DiscardHandler))
}

// boot starts the daemon in the next boot.
func (m *machine) boot() *boots {
	m.boots++
	return m.start()
}

func (m *machine) write(path, content string) {
	m.t.Helper()
	path = filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) want(b *boots, end halfcore.BootEnd, detail string) {
	m.t.Helper()
	got := b.last()
	if got == nil || got.End != end || got.Detail != detail || got.Boot == 0 {
		m.t.Errorf("boot %d: the last boot ended by %+v, want %s: %s", m.boots, got, end, detail)
	}
}

const panicked = "Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000009"

// TestCauseOfLastBootIsFoundOnce plays the boots of one machine.
func TestCauseOfLastBootIsFoundOnce(t *testing.T) {
	m := newMachine(t)
	if got := m.boot().last(); got != nil {
		t.Errorf("the first boot that the agent sees: the last one ended by %+v", got)
	}
	m.want(m.boot(), halfcore.BootPowerLoss, "")

	m.write("sys/fs/pstore/dmesg-ramoops-0", "Panic#1 Part1\n<0>[    9.5] "+panicked+"\n")
	panics := m.boot()
	m.want(panics, halfcore.BootPanic, panicked)
	m.want(m.start(), halfcore.BootPanic, panicked) // the daemon starts again in that boot

	// systemd moves the record. The next boot, which leaves nothing, must not find the old panic again.
	m.write("var/lib/systemd/pstore/1700000000/dmesg.txt", "[    9.1] other line\n[    9.5] "+panicked+"\n")
	m.want(m.boot(), halfcore.BootPowerLoss, "")

	for _, down := range [...]fault.Stop{fault.StopReboot, fault.StopShutdown} {
		m.start().end(down)
		m.want(m.boot(), halfcore.BootOrderly, "")
	}
	m.start().end(fault.StopDaemon)
	m.want(m.boot(), halfcore.BootUnknown, "the agent had been stopped before")

	m.start().end(fault.StopDaemon)
	m.start() // and runs again
	m.want(m.boot(), halfcore.BootPowerLoss, "")

	m.write("sys/class/watchdog/watchdog0/bootstatus", "32\n")
	m.write("sys/class/watchdog/watchdog0/identity", "i6300ESB timer\n")
	m.want(m.boot(), halfcore.BootWatchdog, "watchdog0 (i6300ESB timer)")
	m.write("sys/class/watchdog/watchdog0/bootstatus", "0\n")

	m.write("var/crash/202611241200/dmesg.202611241200", "[  100.25] Kernel panic - not syncing: Fatal exception\n")
	m.want(m.boot(), halfcore.BootPanic, "Kernel panic - not syncing: Fatal exception")

	// The unit of the packages copies the logs for a daemon that may not read them.
	m.write("run/lofamo-kernel/dmesg-1", "[    7.5] "+panicked+"\n")
	m.want(m.boot(), halfcore.BootPanic, panicked)
	m.want(m.boot(), halfcore.BootUnknown, "the agent may not read the logs of dead kernels") // the copies are not complete
	m.write("run/lofamo-kernel/complete", "")
	m.want(m.boot(), halfcore.BootPowerLoss, "")
}

// TestGarbageOfDeadKernelIsBounded: neither the size nor the number nor the content of what lies in the folders matters.
func TestGarbageOfDeadKernelIsBounded(t *testing.T) {
	m := newMachine(t)
	m.boot()
	m.write("sys/fs/pstore/dmesg-efi-1", strings.Repeat("\x00\xff<[", 1<<20)+"\n[1.0] Kernel panic - not syncing: a\x1b[31m\x07"+
		strings.Repeat("b", 1000)+"\n")
	for i := range 40 {
		m.write(filepath.Join("var/crash", strings.Repeat("x", i+1), "dmesg"), "\xff\xfe")
	}
	if err := os.Symlink("/dev/zero", filepath.Join(m.root, "sys/fs/pstore/dmesg-link")); err != nil {
		t.Fatal(err)
	}
	got := m.boot().last()
	if got == nil || got.End != halfcore.BootPanic || len(got.Detail) > 120 || strings.ContainsAny(got.Detail, "\x1b\x07\n") {
		t.Errorf("%+v", got)
	}
}

// TestOthersLogsAreNoEvidence: on some distributions every user may write into the folder of crashes, and could make up a kernel's death.
func TestOthersLogsAreNoEvidence(t *testing.T) {
	m := newMachine(t)
	m.boot()
	m.write("var/crash/made-up-dmesg", "[1.0] "+panicked+"\n")
	m.write("var/crash/open/dmesg", "[1.0] "+panicked+"\n")
	for _, dir := range []string{"var/crash", "var/crash/open"} {
		if err := os.Chmod(filepath.Join(m.root, dir), 0o1777); err != nil {
			t.Fatal(err)
		}
	}
	m.want(m.boot(), halfcore.BootPowerLoss, "")
	m.write("var/crash/202611241200/dmesg", "[1.0] "+panicked+"\n") // the folder is root's only
	m.want(m.boot(), halfcore.BootPanic, panicked)
}

// TestUnreadableLogsAreNoPowerLoss: who may not read the logs of dead kernels cannot know that there are none.
func TestUnreadableLogsAreNoPowerLoss(t *testing.T) {
	m := newMachine(t)
	m.boot()
	tooLong := "/" + strings.Repeat("y", 300) // root may read every folder, so this one fails in another way
	b := lookAtBoots(m.state, tooLong, m.root, [16]byte{99}, slog.New(slog.DiscardHandler))
	m.want(b, halfcore.BootUnknown, "the agent may not read the logs of dead kernels")
}

// TestLogsThatWereUnreadableBeforeAreNoNewEvidence: a log that the agent could not read when a boot began may be older than that boot. So
// it names no end of that boot, once the agent can read it.
func TestLogsThatWereUnreadableBeforeAreNoNewEvidence(t *testing.T) {
	const doubt = "the agent could not read all logs of dead kernels when that boot began"
	for name, tc := range map[string]struct{ unread, old, next string }{
		"incomplete copies":                     {"run/lofamo-kernel/dmesg-1", "run/lofamo-kernel/dmesg-2", "run/lofamo-kernel/dmesg-3"},
		"incomplete copies, then the originals": {"run/lofamo-kernel/dmesg-1", "var/crash/1/dmesg", "var/crash/2/dmesg"},
		"originals, then their copies":          {"", "run/lofamo-kernel/dmesg-2", "run/lofamo-kernel/dmesg-3"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			if tc.unread != "" {
				m.write(tc.unread, "cut short")
				m.boot()
			} else { // root may read every folder, so this one fails in another way
				m.boots++
				lookAtBoots(m.state, "/"+strings.Repeat("y", 300), m.root, [16]byte{m.boots, 15: 1}, slog.New(slog.DiscardHandler))
			}
			if err := os.RemoveAll(filepath.Join(m.root, "run")); err != nil {
				t.Fatal(err)
			}
			m.write(tc.old, "[    9.5] "+panicked+"\n")
			if strings.HasPrefix(tc.old, "run") {
				m.write("run/lofamo-kernel/complete", "")
			}
			m.want(m.boot(), halfcore.BootUnknown, doubt)
			m.want(m.boot(), halfcore.BootPowerLoss, "")
			m.write(tc.next, "[    8.5] "+panicked+"\n")
			m.want(m.boot(), halfcore.BootPanic, panicked)
		})
	}
}

// TestRemovedLogsRevealNoOldDeath: only the newest logs are read. When somebody removes them, older logs become visible again. They are
// still known.
func TestRemovedLogsRevealNoOldDeath(t *testing.T) {
	m := newMachine(t)
	m.boot()
	m.write("var/crash/old/dmesg", "[    9.5] "+panicked+"\n")
	m.want(m.boot(), halfcore.BootPanic, panicked)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(m.root, "var/crash/old/dmesg"), old, old); err != nil {
		t.Fatal(err)
	}
	for i := range maxKernelLogs {
		m.write(fmt.Sprintf("var/crash/new/dmesg-%d", i), fmt.Sprintf("[    1.%02d] %s\n", i, panicked))
	}
	m.want(m.boot(), halfcore.BootPanic, panicked)
	m.want(m.boot(), halfcore.BootPowerLoss, "")
	if err := os.RemoveAll(filepath.Join(m.root, "var/crash/new")); err != nil {
		t.Fatal(err)
	}
	m.want(m.boot(), halfcore.BootPowerLoss, "")
}

// TestNewestPanicIsFoundAmongManyOldLogs: systemd keeps each panic's records and their joined text in a folder, for ever.
func TestNewestPanicIsFoundAmongManyOldLogs(t *testing.T) {
	m := newMachine(t)
	m.boot()
	const panics, records = 100, 20
	crash := func(n int) string { return fmt.Sprintf("var/lib/systemd/pstore/%d", 1700000000+n) }
	for n := range panics {
		for record := range records {
			m.write(fmt.Sprintf("%s/dmesg-efi_pstore-%d%03d", crash(n), 1700000000+n, record), "<6>[ 1.0] line\n")
		}
		m.write(crash(n)+"/dmesg.txt", fmt.Sprintf("[%5d.0] Kernel panic - not syncing: old\n", n))
		dir, at := filepath.Join(m.root, crash(n)), time.Now().Add(time.Duration(n-panics)*time.Hour)
		files, _ := filepath.Glob(dir + "/*")
		for _, path := range append(files, dir) {
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.boot()
	m.want(m.boot(), halfcore.BootPowerLoss, "")
	m.write(crash(panics)+"/dmesg.txt", "[    9.5] "+panicked+"\n")
	m.want(m.boot(), halfcore.BootPanic, panicked)
	m.want(m.boot(), halfcore.BootPowerLoss, "")
}

// TestUnreadableFileHidesNoOtherEvidence: one file or folder that can never be read explains away no error elsewhere.
func TestUnreadableFileHidesNoOtherEvidence(t *testing.T) {
	b := &boots{root: "/r"}
	for _, tc := range []struct {
		unread string
		log    string
		doubt  bool
	}{
		{"", "/r/var/crash/1/dmesg", false},
		{"/r/var/crash/1", "/r/var/crash/1/dmesg", true},
		{"/r/var/crash/1/dmesg", "/r/var/crash/1/dmesg", true},
		{"/r/var/crash/1", "/r/var/crash/2/dmesg", false},
		{"/r/var/crash/1", "/r/var/crash/10/dmesg", false},
		{"/r/var/crash/1", "/r/run/lofamo-kernel/dmesg-1", true},
		{"/r/run/lofamo-kernel", "/r/var/crash/1/dmesg", true},
	} {
		was := bootRecord{}
		if tc.unread != "" {
			was.Unread = []string{tc.unread}
		}
		if got := b.wasUnread(was, []string{tc.log}); got != tc.doubt {
			t.Errorf("unread %q, log %q: doubtful %t, want %t", tc.unread, tc.log, got, tc.doubt)
		}
	}
}

// TestUnreadableFolderHidesNoOtherEvidence: an error in a folder that was readable is new, even if another folder never is.
func TestUnreadableFolderHidesNoOtherEvidence(t *testing.T) {
	m := newMachine(t)
	for i := range maxLogEntries + 1 {
		m.write(fmt.Sprintf("var/crash/dmesg-%04d", i), "")
	}
	m.boot()
	m.want(m.boot(), halfcore.BootUnknown, "there are too many logs of dead kernels")
	m.write("sys/fs/pstore/dmesg-ramoops-0", "[    9.5] "+panicked+"\n")
	m.want(m.boot(), halfcore.BootPanic, panicked)
}

// TestEveryOrderlyEndIsRecorded: the next boot must not take the end of a boot for a power loss because the daemon waited for a place, or
// had ended because of an error.
func TestEveryOrderlyEndIsRecorded(t *testing.T) {
	for name, tc := range map[string]struct {
		spare bool
		code  int // with which the halves end; 0: they run
	}{
		"a node in its place":             {},
		"a spare that waits for a place":  {spare: true},
		"a daemon whose half has refused": {code: half.ExitRefusedFile},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := agenttest.NodeConfig(t)
			if tc.spare {
				cfg.Spare, cfg.Coord = true, ""
				for dir, l := range cfg.Links {
					l.Peer = ""
					cfg.Links[dir] = l
				}
			}
			if err := cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(t.TempDir(), "halves")
			script := "#!/bin/sh\nexec sleep 1000\n"
			if tc.code != 0 {
				script = fmt.Sprintf("#!/bin/sh\nexit %d\n", tc.code)
			}
			if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			id, err := storage.BootID()
			if err != nil {
				t.Fatal(err)
			}
			if err := half.MakeStateDir(cfg.StateDir); err != nil {
				t.Fatal(err)
			}
			log := slog.New(slog.DiscardHandler)
			path := filepath.Join(cfg.StateDir, bootFile)
			lookAtBoots(cfg.StateDir, cfg.Sensors.Sysfs, "", id, log) // as the daemon did before, in this boot
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- Run(ctx, RunConfig{Agent: cfg, Program: program, Restart: RestartAlways}, log) }()
			if tc.code == 0 {
				agenttest.Await(t, "the daemon serves", func() bool {
					_, err := os.Stat(filepath.Join(cfg.StateDir, local.LiveSocket(fault.HalfHost)))
					return err == nil
				})
				cancel()
			}
			if err := <-done; (err != nil) != (tc.code != 0) {
				t.Errorf("the daemon ended with %v", err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if r, err := decodeBoot(b); err != nil || r.Ended == nil {
				t.Errorf("%s, %v: want a record of the end", b, err)
			}
		})
	}
}

func TestDamagedBootRecordIsTakenForLost(t *testing.T) {
	m := newMachine(t)
	m.boot()
	if err := os.WriteFile(filepath.Join(m.state, bootFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := m.boot().last(); got != nil {
		t.Errorf("%+v", got)
	}
	m.want(m.boot(), halfcore.BootPowerLoss, "")
}

// FuzzBootRecord: a record is refused, or written again as it is.
func FuzzBootRecord(f *testing.F) {
	f.Add([]byte(`{"boot":"000102030405060708090a0b0c0d0e0f","ended":{"reason":"x","down":true},"last":{"end":1,"boot":7},"known":[1],` +
		`"unread":["/sys/fs/pstore"]}`))
	f.Add([]byte(`{"boot":"00","last":{"end":99}}`))
	f.Add([]byte(`{"boot":"00000000000000000000000000000000","known":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeBoot(b)
		if err != nil {
			return
		}
		if len(r.Known) == 0 {
			r.Known = nil // an empty list is not written
		}
		if len(r.Unread) == 0 {
			r.Unread = nil
		}
		m := newMachine(t)
		old := &boots{path: filepath.Join(m.state, bootFile), log: slog.New(slog.DiscardHandler), record: r}
		old.keep()
		data, err := os.ReadFile(old.path)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decodeBoot(data); len(data) <= maxBootFile && (err != nil || !reflect.DeepEqual(again, r)) {
			t.Errorf("%q: %+v, then %+v, %v", b, r, again, err)
		}
	})
}
