package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/cluster"
)

// terminal is the outer end of a pseudo-terminal with a program inside, and the program's output.
type terminal struct {
	*os.File
	mu  sync.Mutex // guards out
	out bytes.Buffer
}

// inTerminal starts a program in a pseudo-terminal of its own. It is killed when the test ends before it does.
func inTerminal(t *testing.T, columns, rows uint16, cmd *exec.Cmd) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tm := &terminal{File: master}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	tm.resize(t, columns, rows)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=1", "COLUMNS=", "LINES=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 1<<14)
		for {
			n, err := master.Read(b)
			tm.mu.Lock()
			tm.out.Write(b[:n])
			tm.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended where the test was good
		<-read
		_ = master.Close()
	})
	return tm
}

func (tm *terminal) resize(t *testing.T, columns, rows uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(tm.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		t.Fatal(err)
	}
}

// escapes matches sequences that move the cursor or change the terminal's modes.
var escapes = regexp.MustCompile("\x1b\\[[0-9;?<>=$ ]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>78M]|\x1b\\][^\x07\x1b]*(\x07|\x1b\\\\)")

// shows waits until the screen passes. The program writes only where the screen changes, so shows changes the
// terminal's height by one line to have it write everything.
func (tm *terminal) shows(t *testing.T, what string, passes func(screen string) bool) {
	t.Helper()
	text := ""
	rows := uint16(24)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		tm.mu.Lock()
		tm.out.Reset()
		tm.mu.Unlock()
		rows ^= 1
		tm.resize(t, 100, rows)
		for range 100 {
			time.Sleep(20 * time.Millisecond)
			tm.mu.Lock()
			text = escapes.ReplaceAllString(tm.out.String(), "\n")
			tm.mu.Unlock()
			if passes(text) {
				return
			}
		}
	}
	t.Fatalf("%s is not shown within %v; the last screen:\n%s", what, patience, text)
}

func (tm *terminal) types(t *testing.T, keys string) {
	t.Helper()
	if _, err := tm.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

var liveFrom = regexp.MustCompile(`live from (127\.0\.0\.1:\d+)`)

// It shows a dying node with the cause; it continues after the death of its supervisor, and leaves the terminal on
// request.
func TestTopInTerminal(t *testing.T) {
	l := startCluster(t, "2x2", 3)
	cmd := exec.Command(filepath.Join(binaries, "lofamoctl"), "top", "--dir", l.Cluster.Dir())
	tm := inTerminal(t, 100, 24, cmd)
	contains := func(want string) func(string) bool { return func(s string) bool { return strings.Contains(s, want) } }
	at := ""
	tm.shows(t, "a healthy cluster", func(s string) bool {
		if m := liveFrom.FindStringSubmatch(s); m != nil {
			at = m[1]
		}
		return at != "" && strings.Contains(s, "nodes 4: 4 NORMAL")
	})
	if _, err := l.Cluster.Inject(t.Context(), "n1-0-0", cluster.Fault{Kind: cluster.KillNode}); err != nil {
		t.Fatal(err)
	}
	tm.shows(t, "the node that was killed", contains("X n1-0-0 FAILED NODE"))
	tm.types(t, "\r")
	tm.shows(t, "why", contains("node of n1-0-0 at 1,0,0 has been FAILED"))
	tm.types(t, "q")
	for _, s := range l.Cluster.Info().Supervisors {
		if s.GRPC == at {
			if err := l.Cluster.KillSupervisor(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	tm.shows(t, "another supervisor", func(s string) bool {
		m := liveFrom.FindStringSubmatch(s)
		return m != nil && m[1] != at && strings.Contains(s, "X n1-0-0 FAILED NODE")
	})
	tm.types(t, "q")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("top ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("top does not end")
	}
}
