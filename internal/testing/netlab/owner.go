package netlab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// spacesDir is where iproute2 keeps the namespaces that have names.
const spacesDir = "/run/netns"

// claim is the right to one network on this machine. It ends with release or with the process, so that objects with a
// newly claimed number are known leftovers.
type claim struct {
	slot int
	l    net.Listener
}

// take claims a slot; the error is unix.EADDRINUSE if another process has it.
func take(slot int) (*claim, error) {
	// An abstract socket's name is free again when its holder dies.
	l, err := net.Listen("unix", "@lofamo-netlab-"+strconv.Itoa(slot))
	if err != nil {
		return nil, fmt.Errorf("claim network %d: %w", slot, err)
	}
	return &claim{slot, l}, nil
}

// claimSlot claims any slot whose addresses do not conflict with this machine's own.
func claimSlot() (*claim, error) {
	var last error
	for slot := range slots {
		c, err := take(slot)
		if err != nil {
			last = err
			continue
		}
		taken, err := collides(slot)
		if err == nil && !taken {
			return c, nil
		}
		c.release()
		last = errors.Join(err, fmt.Errorf("network %s: this machine has it already", supervisorNet(slot)))
	}
	return nil, fmt.Errorf("claim a network: none of %d is free, the last: %w", slots, last)
}

func (c *claim) release() { _ = c.l.Close() }

// prefix begins the names of all namespaces of the claim's network.
func (c *claim) prefix() string { return fmt.Sprintf("lofamo-%d-%d-", os.Getpid(), c.slot) }

// ownPrefix takes the prefix and the slot out of the name of a namespace or of a directory.
var ownPrefix = regexp.MustCompile(`^lofamo-(?:netlab-)?([0-9]+)-([0-9]+)(?:-|$)`)

// sweep removes the leftovers of dead processes: their processes, namespaces and directories.
func sweep(ctx context.Context) error {
	names, err := spacesWith("lofamo-")
	if err != nil {
		return err
	}
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "lofamo-netlab-*"))
	if err != nil {
		return fmt.Errorf("look for what is left over: %w", err)
	}
	for _, d := range dirs {
		if name := filepath.Base(d); !strings.Contains(name, "-kept-") {
			names = append(names, name)
		}
	}
	done := map[string]bool{}
	var errs []error
	for _, name := range names {
		m := ownPrefix.FindStringSubmatch(name)
		if m == nil || done[m[0]] {
			continue
		}
		done[m[0]] = true
		slot, err := strconv.Atoi(m[2])
		if err != nil {
			continue // no slot of ours
		}
		c, err := take(slot)
		if err != nil {
			continue // its owner lives
		}
		pid := m[1]
		errs = append(errs, remove(ctx, fmt.Sprintf("lofamo-%s-%d-", pid, slot)))
		errs = append(errs, os.RemoveAll(directory(pid, slot)))
		c.release()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the networks of dead processes: %w", err)
	}
	return nil
}

// directory returns the directory of a cluster's files on a network.
func directory(pid string, slot int) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("lofamo-netlab-%s-%d", pid, slot))
}

// spacesWith lists the namespaces with this prefix.
func spacesWith(prefix string) ([]string, error) {
	entries, err := os.ReadDir(spacesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// remove ends the processes in all namespaces with the prefix and removes these, with their
// interfaces and cables.
func remove(ctx context.Context, prefix string) error {
	spaces, err := spacesWith(prefix)
	if err != nil || len(spaces) == 0 {
		return err
	}
	if err := endProcesses(ctx, spaces); err != nil {
		return err
	}
	if err := removeTestsEnd(ctx, prefix); err != nil {
		return err
	}
	var lines []string
	for _, s := range spaces {
		lines = append(lines, "netns del "+s)
	}
	// The first that fails must not spare the others.
	_, err = tool(ctx, strings.Join(lines, "\n")+"\n", "ip", "-force", "-batch", "-")
	left, lerr := spacesWith(prefix)
	if err = errors.Join(err, lerr); err != nil && len(left) > 0 {
		return fmt.Errorf("remove network namespaces, %d are left: %w", len(left), err)
	}
	return nil
}

// removeTestsEnd removes the cable to the tests' own namespace. The kernel would remove it with its other end, but only
// later.
func removeTestsEnd(ctx context.Context, prefix string) error {
	m := ownPrefix.FindStringSubmatch(prefix)
	if m == nil {
		return fmt.Errorf("prefix %q of a network: want lofamo-PID-SLOT-", prefix)
	}
	dev := "lofamo" + m[2]
	if _, err := net.InterfaceByName(dev); err != nil {
		return nil //nolint:nilerr // none there
	}
	return ip(ctx, "", []string{"link del " + dev})
}

// endProcesses kills all processes in the namespaces, and waits for their end.
func endProcesses(ctx context.Context, spaces []string) error {
	inodes := map[uint64]bool{}
	for _, s := range spaces {
		if ino, ok := inode(filepath.Join(spacesDir, s)); ok {
			inodes[ino] = true
		}
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := killIn(inodes)
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end %d processes in network namespaces: %w", n, ctx.Err())
		case <-tick.C:
		}
	}
}

// killIn kills every process in one of the network namespaces, and returns their number.
func killIn(inodes map[uint64]bool) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	n := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		in := func() bool {
			ino, ok := inode(filepath.Join("/proc", e.Name(), "ns/net"))
			return ok && inodes[ino]
		}
		if !in() {
			continue // or a zombie, which is in none
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // gone
		}
		if in() { // still true: the descriptor holds the intended process
			n++
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		_ = unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return n, fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return n, nil
}

func inode(path string) (uint64, bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, false
	}
	return st.Ino, true
}

// collides reports whether the network of the supervisors would conflict with one that this machine has.
func collides(slot int) (bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("addresses of this machine: %w", err)
	}
	want := supervisorNet(slot)
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Overlaps(want) {
			return true, nil
		}
	}
	return false, nil
}
