package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pressureBytes is the memory of the one process that writes all its pages over and over.
	pressureBytes = 256 << 20
	// pressureFile is the size of the file that one process writes and syncs, with a pause of pressurePause.
	pressureFile  = 64 << 20
	pressurePause = 200 * time.Millisecond
)

// LoadMain is the program of a load process: "busy", "memory", or "disk DIR". It ends when its standard input does, so
// that no load outlives a trial.
func LoadMain(args []string) error {
	shareAsNice()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	switch {
	case len(args) == 1 && args[0] == "busy":
		for n := 0; ; n++ { // spinning is the purpose
			_ = n
		}
	case len(args) == 1 && args[0] == "memory":
		pages := make([]byte, pressureBytes)
		for n := byte(0); ; n++ {
			for i := 0; i < len(pages); i += 4096 {
				pages[i] = n
			}
			time.Sleep(pressurePause / 20)
		}
	case len(args) == 2 && args[0] == "disk":
		return writeDisk(filepath.Join(args[1], "pressure"))
	}
	return fmt.Errorf("load %q: want busy, memory, or disk DIR", args)
}

// shareAsNice gives the session of this process the share of its nice value: with autogroups, a nice value counts within
// a session only.
func shareAsNice() {
	if n, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		_ = os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(20-n)), 0) // kernels without autogroups have no such file
	}
}

func writeDisk(path string) error {
	block := make([]byte, 1<<20)
	for {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		for range pressureFile / len(block) {
			if _, err := f.Write(block); err != nil {
				return errors.Join(err, f.Close())
			}
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
		time.Sleep(pressurePause)
	}
}

// load is the set of running load processes.
type load struct {
	command  []string // that runs LoadMain with further arguments
	dir      string
	loops    int
	pressure bool
	procs    []*exec.Cmd
	stdins   []io.Closer
}

// set changes the load. It ends all processes and starts new ones unless the load stays the same.
func (l *load) set(ctx context.Context, loops int, pressure bool) error {
	if loops == l.loops && pressure == l.pressure {
		return nil
	}
	l.stop()
	l.loops, l.pressure = loops, pressure
	for range loops {
		if err := l.start(ctx, "busy"); err != nil {
			return err
		}
	}
	if !pressure {
		return nil
	}
	if err := l.start(ctx, "memory"); err != nil {
		return err
	}
	return l.start(ctx, "disk", l.dir)
}

func (l *load) start(ctx context.Context, args ...string) error {
	if len(l.command) == 0 {
		return errors.New("start load: no command given")
	}
	c := exec.CommandContext(ctx, l.command[0], append(l.command[1:], args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // each competes with the cluster's processes as their equal
	in, err := c.StdinPipe()
	if err != nil {
		return fmt.Errorf("start load %q: %w", args, err)
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start load %q: %w", args, err)
	}
	l.procs, l.stdins = append(l.procs, c), append(l.stdins, in)
	return nil
}

// stop ends all load.
func (l *load) stop() {
	for i, c := range l.procs {
		_ = l.stdins[i].Close()
		_ = c.Process.Kill()
		_ = c.Wait() // killed
	}
	l.procs, l.stdins, l.loops, l.pressure = nil, nil, 0, false
}
