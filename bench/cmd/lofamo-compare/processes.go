package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/bench/measure"
)

// processes lists all processes in /proc.
func processes() ([]int, error) {
	dir, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range dir {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killSession sends SIGKILL to all processes of a session. It kills the leader first, because a daemon that outlived its
// children would start new ones, and ends when it finds no process that it has not killed.
func killSession(id int) error {
	if err := unix.Kill(id, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill the leader of session %d: %w", id, err)
	}
	hit := map[int]bool{id: true}
	for fresh := true; fresh; {
		fresh = false
		pids, err := processes()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if sid, err := unix.Getsid(pid); err != nil || sid != id || hit[pid] {
				continue
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d of session %d: %w", pid, id, err)
			}
			hit[pid], fresh = true, true
		}
	}
	return nil
}

// usage sums the consumption of all processes in the namespace but those excepted. A process that ended between two
// calls loses its time.
func usage(except []int) (sum measure.Usage, err error) {
	pids, err := processes()
	if err != nil {
		return sum, err
	}
	for _, pid := range pids {
		if slices.Contains(except, pid) {
			continue
		}
		u, err := measure.Process(pid)
		if err != nil {
			continue // it has just ended
		}
		sum.CPU += u.CPU
		sum.Resident += u.Resident
	}
	return sum, nil
}

// sentBytes returns the bytes that the namespace's loopback interface has sent.
func sentBytes() (int64, error) {
	b, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return 0, fmt.Errorf("count bytes: %w", err)
	}
	return parseSent(b)
}

// parseSent reads the transmitted bytes of lo from the text of /proc/net/dev.
func parseSent(b []byte) (int64, error) {
	for l := range bytes.Lines(b) {
		name, rest, ok := strings.Cut(string(l), ":")
		if !ok || strings.TrimSpace(name) != "lo" {
			continue
		}
		f := strings.Fields(rest)
		if len(f) < 9 {
			return 0, fmt.Errorf("/proc/net/dev: %q: want 9 or more numbers", l)
		}
		n, err := strconv.ParseInt(f[8], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/net/dev: bytes sent by lo: %w", err)
		}
		return n, nil
	}
	return 0, errors.New("/proc/net/dev: no line for lo")
}

// costs are measured over a time without kills.
type costs struct {
	cpu    float64 // share of a core
	bytes  float64 // per second
	memory float64 // bytes, at the end
}

// measureCosts measures the namespace for a time; except are the run's own processes and busy loops.
func measureCosts(over time.Duration, except []int, pause func(time.Duration) error) (costs, error) {
	from, err := usage(except)
	if err != nil {
		return costs{}, err
	}
	bytesFrom, err := sentBytes()
	if err != nil {
		return costs{}, err
	}
	begun := time.Now()
	if err := pause(over); err != nil {
		return costs{}, err
	}
	took := time.Since(begun)
	to, err := usage(except)
	if err != nil {
		return costs{}, err
	}
	bytesTo, err := sentBytes()
	if err != nil {
		return costs{}, err
	}
	return costs{
		cpu: float64(to.CPU-from.CPU) / float64(took), bytes: measure.Rate(bytesTo-bytesFrom, took), memory: float64(to.Resident),
	}, nil
}
