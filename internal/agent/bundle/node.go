package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// procFiles are the files of the proc file system in a bundle, all readable without privilege.
var procFiles = []string{
	"uptime", "loadavg", "meminfo", "pressure/cpu", "pressure/memory", "pressure/io", "net/dev", "interrupts",
}

// kernelFile is the part with the kernel's log.
const kernelFile = "kernel.log"

func (g *gatherer) halfParts() []Part {
	version := Part{"version.json", func() ([]byte, error) { return json.MarshalIndent(g.cfg.Version, "", "  ") }}
	return append(append([]Part(nil), g.cfg.Parts...), version)
}

func (g *gatherer) nodeParts() []Part {
	var parts []Part
	for _, name := range procFiles {
		parts = append(parts, Part{"proc/" + name, func() ([]byte, error) { return g.readProc(name) }})
	}
	parts = append(parts, Part{"interfaces.txt", interfaces})
	if g.cfg.Kernel == "" {
		g.manifest.leaveOut(kernelFile, "not asked for")
		return parts
	}
	return append(parts, Part{kernelFile, func() ([]byte, error) { return kernelLog(g.cfg.Kernel, kernelPart, g.pause) }})
}

// readProc reads a file of the proc file system. A recorded or partial tree, as in tests, lacks some files: then it
// reads this machine's.
func (g *gatherer) readProc(name string) ([]byte, error) {
	b, err := readSmall(filepath.Join(g.cfg.Proc, name))
	if errors.Is(err, fs.ErrNotExist) && g.cfg.Proc != ownProc {
		if own, ownErr := readSmall(filepath.Join(ownProc, name)); ownErr == nil {
			g.manifest.note("proc/"+name, "is that of "+ownProc+": there is none in "+g.cfg.Proc)
			return own, nil
		}
	}
	return b, err
}

const ownProc = "/proc"

// openRegular opens a file that cannot block: not a pipe, socket or device.
func openRegular(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is a %s: want a regular file", path, info.Mode().Type())
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// readSmall reads a file of the proc file system, whose size is known only at its end.
func readSmall(path string) (_ []byte, err error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, smallPart))
}

func interfaces() ([]byte, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, i := range list {
		fmt.Fprintf(&b, "%d %s mtu %d %s %s\n", i.Index, i.Name, i.MTU, i.Flags, i.HardwareAddr)
		addrs, err := i.Addrs()
		if err != nil {
			fmt.Fprintf(&b, "    addresses: %v\n", err)
		}
		for _, a := range addrs {
			fmt.Fprintf(&b, "    %s\n", a)
		}
	}
	return b.Bytes(), nil
}

// kernelLog reads the kernel's log buffer, at most the given number of bytes from its end. It reads the device without
// blocking, and does not wait for more. After each piece it calls pause, and ends with its error.
func kernelLog(path string, most int, pause func() error) (_ []byte, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	record := make([]byte, 8<<10) // the kernel's own bound of a record
	var out []byte
	done := 0           // bytes since the last pause
	for range 1 << 20 { // a kernel that logs faster than we read must not keep us
		n, err := unix.Read(fd, record)
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // overwritten before it was read
			continue
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return lastLines(out, most), nil
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		out = append(out, record[:n]...)
		if len(out) > 2*most {
			out = append(out[:0], lastLines(out, most)...)
		}
		if done += n; done >= piece {
			done = 0
			if err := pause(); err != nil {
				return nil, err
			}
		}
	}
	return lastLines(out, most), nil
}

// lastLines returns the last whole lines that fit the given number of bytes.
func lastLines(b []byte, most int) []byte {
	if len(b) <= most {
		return b
	}
	b = b[len(b)-most:]
	if _, after, ok := bytes.Cut(b, []byte{'\n'}); ok {
		return after
	}
	return b
}

func compactJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "unknown: " + err.Error()
	}
	return string(b)
}

// OwnLogs returns the log files of a node that one of its halves can know: its own standard error, descriptor 2, if
// that is a file, and the other half's file beside it.
func OwnLogs(proc string) []string {
	path, err := os.Readlink(filepath.Join(proc, "self/fd/2"))
	if err != nil || !filepath.IsAbs(path) || strings.HasSuffix(path, " (deleted)") {
		return nil
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	dir, base := filepath.Split(path)
	if base != "host.log" && base != "dnp.log" {
		return []string{path}
	}
	return []string{filepath.Join(dir, "host.log"), filepath.Join(dir, "dnp.log")}
}
