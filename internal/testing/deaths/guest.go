package deaths

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/internal/testing/pdeathsig"
)

// guest is one virtual machine. Its owner calls its methods one at a time.
type guest struct {
	name    string
	dir     string // with its disk, sockets and logs
	command []string
	limit   time.Duration // QEMU ends after this time, whatever happens

	console *feed[string]
	events  *feed[string] // of QEMU
	agent   func(line []byte)

	cmd   *exec.Cmd
	keys  io.WriteCloser
	qmp   *qmp
	ended chan struct{}
	since time.Time
	ran   time.Duration // of its former processes
}

func (m *guest) path(end string) string { return filepath.Join(m.dir, m.name+end) }

// start powers the machine on. The first serial port is its console. The second one has the log of its program.
func (m *guest) start(ctx context.Context) error {
	if m.console == nil {
		m.console, m.events = newFeed[string](), newFeed[string]()
	}
	m.cmd = exec.Command(m.command[0], append(m.command[1:],
		"-qmp", "unix:"+m.path(".qmp")+",server=on,wait=off", "-gdb", "unix:"+m.path(".gdb")+",server=on,wait=off",
		"-chardev", "file,id=log,path=/dev/fd/3,append=on", "-serial", "chardev:log")...)
	m.cmd.Env = append(os.Environ(), fmt.Sprintf("LIMIT=%d", int(m.limit.Seconds())))
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, logged, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = logged.Close() }()
	m.cmd.ExtraFiles = []*os.File{logged}
	if m.keys, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	m.cmd.Stderr = m.cmd.Stdout
	for _, socket := range []string{".qmp", ".gdb"} {
		if err := os.Remove(m.path(socket)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := pdeathsig.Start(m.cmd, syscall.SIGTERM); err != nil {
		return fmt.Errorf("start machine %s: %w", m.name, err)
	}
	m.since, m.ended = time.Now(), make(chan struct{})
	read := make(chan struct{}, 2)
	go m.read(out, ".console", m.consoleLine, read)
	go m.read(log, ".log", m.agent, read)
	go func(cmd *exec.Cmd, ended chan struct{}) {
		<-read
		<-read
		_ = cmd.Wait() // it is killed, or powers itself off
		close(ended)
	}(m.cmd, m.ended)
	m.qmp, err = dialQMP(ctx, m.path(".qmp"), m.events)
	return err
}

func (m *guest) consoleLine(line []byte) { m.console.add(string(line)) }

// read passes lines on, and writes them to a file.
func (m *guest) read(from io.Reader, end string, take func([]byte), done chan<- struct{}) {
	defer func() { done <- struct{}{} }()
	to, err := os.OpenFile(m.path(end), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		to = nil // the lines still count
	}
	defer func() { _ = to.Close() }()
	lines := bufio.NewReaderSize(from, 1<<16)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			_, _ = to.Write(line)
			take(line)
		}
		if err != nil {
			return
		}
	}
}

// cut kills QEMU: the machine loses its power.
func (m *guest) cut() {
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL)
	<-m.ended
	m.off()
}

// awaitOff waits until the machine has powered itself off.
func (m *guest) awaitOff(bound time.Duration) error {
	select {
	case <-m.ended:
		m.off()
		return nil
	case <-time.After(bound):
		return fmt.Errorf("machine %s: not off within %s", m.name, bound)
	}
}

func (m *guest) off() {
	m.ran += time.Since(m.since)
	m.cmd = nil
	if m.qmp != nil {
		_ = m.qmp.conn.Close()
	}
}

// time returns for how long the machine has run.
func (m *guest) time() time.Duration {
	if m.cmd == nil {
		return m.ran
	}
	return m.ran + time.Since(m.since)
}

// typeIn gives the machine's start script a line to run.
func (m *guest) typeIn(line string) error {
	_, err := io.WriteString(m.keys, line+"\n")
	return err
}

// await waits for a line of the console.
func (m *guest) await(ctx context.Context, mark int, bound time.Duration, regex string) (dated[string], error) {
	return m.console.wait(ctx, mark, bound, fmt.Sprintf("console of %s: %s", m.name, regex), regexp.MustCompile(regex).MatchString)
}

// powerOff shuts the machine down in order, and waits until it is off. A busy machine may lose a character of what is typed, so it is typed
// again.
func (m *guest) powerOff() (err error) {
	for range 3 {
		if err = m.typeIn("down poweroff"); err != nil {
			return err
		}
		if err = m.awaitOff(dyingBound / 3); err == nil {
			return nil
		}
	}
	return err
}

// reset waits until the machine's hardware watchdog resets it. events is a mark.
func (m *guest) reset(ctx context.Context, events int) error {
	_, err := m.events.wait(ctx, events, dyingBound, "reset by the watchdog", func(e string) bool { return e == "WATCHDOG" })
	return err
}
