package daemon

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/durable"
)

// bootFile is the file in a state directory with the record of the machine's boots.
const bootFile = "boot.json"

// Bounds of the files that the former boot may have left. Panic logs are of 64 KiB at most with pstore's usual sizes; of a longer log,
// its end has the panic.
const (
	maxBootFile   = 8 << 10
	maxKernelLog  = 256 << 10
	maxKernelLogs = 16  // the newest count
	maxKnown      = 128 // keys of errors
	maxLogEntries = 512 // logs and folders looked at, and those of one folder
	maxUnread     = 8   // files and folders of one folder that are remembered one by one
	logDepth      = 3   // folders below the first
)

// bootRecord is the content of that file: the facts of the present boot that the next one needs.
type bootRecord struct {
	Boot  string    `json:"boot"`            // the present boot's id, in hexadecimal digits
	Ended *bootStop `json:"ended,omitempty"` // nil: the daemon runs, or ended without a word
	// Last is how the boot before ended; nil: not known.
	Last *halfcore.LastBoot `json:"last,omitempty"`
	// Known are the keys of the errors that the daemon found in kernel logs at its first start in this boot or in an earlier boot, newest
	// first.
	Known []uint64 `json:"known,omitempty"`
	// Unread are the files and folders that the daemon could not read at that start. A log there may be older than this boot.
	Unread []string `json:"unread,omitempty"`
}

// bootStop is the daemon's record of an end on request.
type bootStop struct {
	Reason string `json:"reason"`         // for people
	Down   bool   `json:"down,omitempty"` // the machine was going down
}

// decodeBoot reads the stored record.
func decodeBoot(b []byte) (r bootRecord, err error) {
	if len(b) > maxBootFile {
		return bootRecord{}, fmt.Errorf("%d bytes: want at most %d", len(b), maxBootFile)
	}
	if err = json.Unmarshal(b, &r); err != nil {
		return bootRecord{}, err
	}
	if id, err := hex.DecodeString(r.Boot); err != nil || len(id) != 16 {
		return bootRecord{}, fmt.Errorf("boot: given %.40q: want 32 hexadecimal digits", r.Boot)
	}
	if l := r.Last; l != nil && (!l.End.Valid() || l.Boot == 0) {
		return bootRecord{}, fmt.Errorf("last: given %+v: want an end of 1 to %d and a boot above 0", *l, halfcore.BootUnknown)
	}
	return r, nil
}

// boots reads and writes the record of the machine's boots.
type boots struct {
	path  string
	id    [16]byte // of the present boot
	sysfs string   // its mount point
	root  string   // in front of all other paths; empty outside tests
	log   *slog.Logger

	record bootRecord
}

// lookAtBoots finds out how the machine's last boot ended, once for each boot, and stores the answer. A failure costs only
// the answer, and does not keep the daemon from starting.
func lookAtBoots(stateDir, sysfs, root string, id [16]byte, log *slog.Logger) *boots {
	b := &boots{path: filepath.Join(stateDir, bootFile), id: id, sysfs: cmp.Or(sysfs, "/sys"), root: root, log: log}
	was, lost := durable.Load(b.path, "record of boots", maxBootFile, bootRecord{}, decodeBoot)
	if lost != nil {
		log.Warn("read boot record: the end of the previous boot is unknown", "path", b.path, "err", lost)
	}
	now := hex.EncodeToString(id[:])
	if was.Boot == now {
		b.record = was
		b.record.Ended = nil
		b.keep()
		return b
	}
	found, unread, failed := b.kernelDeaths()
	b.record = bootRecord{Boot: now, Unread: unread}
	for _, d := range found {
		b.record.Known = append(b.record.Known, d.Key)
	}
	for _, key := range was.Known { // removing newer logs may bring its log among the newest again
		if len(b.record.Known) < maxKnown && !slices.Contains(b.record.Known, key) {
			b.record.Known = append(b.record.Known, key)
		}
	}
	if was.Boot != "" {
		traces, doubtful := halfcore.BootTraces{Watchdog: b.watchdog()}, false
		for _, d := range found {
			switch {
			case slices.Contains(was.Known, d.Key):
			case b.wasUnread(was, d.paths):
				doubtful = true
			default:
				traces.Deaths = append(traces.Deaths, d.KernelDeath)
			}
		}
		if e := was.Ended; e != nil {
			traces.Orderly, traces.Reason, traces.Down = true, e.Reason, e.Down
		}
		last := halfcore.ClassifyBoot(traces)
		switch {
		case last.End != halfcore.BootPowerLoss:
		case errors.Is(failed, errTooManyLogs):
			last = halfcore.LastBoot{End: halfcore.BootUnknown, Detail: "there are too many logs of dead kernels"}
		case len(unread) > 0:
			last = halfcore.LastBoot{End: halfcore.BootUnknown, Detail: "the agent may not read the logs of dead kernels"}
		case doubtful:
			last = halfcore.LastBoot{End: halfcore.BootUnknown,
				Detail: "the agent could not read all logs of dead kernels when that boot began"}
		}
		last.Boot = halfcore.BootPart(id)
		b.record.Last = &last
		log.Info("first start since the machine booted", "last_boot_ended_by", last.End.String(), "detail", last.Detail)
	}
	b.keep()
	return b
}

// last returns how the machine's previous boot ended, or nil if unknown.
func (b *boots) last() *halfcore.LastBoot {
	if b == nil {
		return nil
	}
	return b.record.Last
}

// withMachine adds the machine's state to the record of the host half: the end of its last boot, and its hardware watchdog.
func (c *child) withMachine(r halfcore.RecoveryRecord) halfcore.RecoveryRecord {
	if c.half == fault.HalfHost {
		r.LastBoot, r.Watchdog = c.d.boots.last(), c.d.watchdog.Load()
	}
	return r
}

// keep stores the record, durably: it is for the time after a power loss.
func (b *boots) keep() {
	data, err := json.Marshal(b.record)
	if err == nil {
		err = durable.Replace(b.path, append(data, '\n'))
	}
	if err != nil {
		b.log.Warn("store boot record: the next boot cannot tell how this one ended", "path", b.path, "err", err)
	}
}

// end records that the daemon ends on request. A nil receiver does nothing.
func (b *boots) end(reason fault.Stop) {
	if b == nil {
		return
	}
	stop := bootStop{Reason: "the agent was stopped"}
	if reason == fault.StopShutdown || reason == fault.StopReboot || reason == fault.StopLeave {
		stop = bootStop{Down: true}
	}
	b.record.Ended = &stop
	b.keep()
}

// copiedLogs is where the packages' unit puts copies of the logs of dead kernels: only root may read the logs themselves.
const copiedLogs = "/run/lofamo-kernel"

// copiesComplete is the file there that the unit makes last.
const copiesComplete = "complete"

// logDirs returns the folders with logs of dead kernels: that of the copies; or pstore, the folder to which systemd moves pstore's
// records, and that of kdump.
func (b *boots) logDirs() []string {
	if info, err := os.Lstat(b.root + copiedLogs); err == nil && info.IsDir() {
		return []string{b.root + copiedLogs}
	}
	return []string{filepath.Join(b.sysfs, "fs/pstore"), b.root + "/var/lib/systemd/pstore", b.root + "/var/crash"}
}

// foundDeath is an error in the logs of dead kernels.
type foundDeath struct {
	halfcore.KernelDeath
	paths []string // of its logs
}

// kernelDeaths returns the errors that kernels left in logs, the files and folders that it could not read, and why.
func (b *boots) kernelDeaths() (out []foundDeath, unread []string, errs error) {
	for _, dir := range b.logDirs() {
		paths, lost, err := newestLogs(dir)
		if _, missing := os.Lstat(filepath.Join(dir, copiesComplete)); dir == b.root+copiedLogs && missing != nil {
			lost, err = append(lost, dir), errors.Join(err, fmt.Errorf("copies are not complete: %w", missing))
		}
		for _, path := range paths {
			log, readErr := readEnd(path)
			if readErr != nil {
				lost, err = append(lost, path), errors.Join(err, readErr)
				continue
			}
			d, ok := halfcore.ReadKernelLog(log)
			if !ok {
				b.log.Info("a log of a dead kernel names no error", "path", path, "bytes", len(log))
				continue
			}
			i := slices.IndexFunc(out, func(f foundDeath) bool { return f.KernelDeath == d })
			if i < 0 {
				i, out = len(out), append(out, foundDeath{KernelDeath: d})
			}
			out[i].paths = append(out[i].paths, path)
		}
		if len(lost) > maxUnread {
			lost = []string{dir}
		}
		unread, errs = append(unread, lost...), errors.Join(errs, err)
	}
	if errs != nil {
		b.log.Warn("read the logs of dead kernels: failed", "err", errs)
	}
	return out, unread, errs
}

// wasUnread reports whether every log of an error may be older than the boot that was records. The daemon could not read the log, or a
// folder above it, when that boot began. The folder of copies has the logs of all other folders.
func (b *boots) wasUnread(was bootRecord, logs []string) bool {
	copies := b.root + copiedLogs
	return len(was.Unread) > 0 && !slices.ContainsFunc(logs, func(log string) bool {
		return !within(log, copies) && !slices.ContainsFunc(was.Unread, func(u string) bool { return within(log, u) || within(u, copies) })
	})
}

// within reports whether a path is a folder or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// private reports whether only root and the daemon's user can change a file or a folder.
func private(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && (st.Uid == 0 || int(st.Uid) == os.Geteuid()) && info.Mode().Perm()&0o022 == 0
}

// errTooManyLogs means that a folder has more logs than the daemon looks at, and that the newest may be among the others.
var errTooManyLogs = fmt.Errorf("want at most %d logs and folders", maxLogEntries)

// newestLogs returns the newest kernel logs below a folder, which may be absent. Only private ones in private folders count: others
// may be made up. It also returns the files and folders that it cannot look at.
func newestLogs(dir string) (out, unread []string, err error) {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, []string{dir}, err
	case !info.IsDir():
		return nil, nil, nil
	}
	w := logWalk{left: maxLogEntries}
	w.folder(dir, info, 0)
	if w.cut && len(w.found) < maxKernelLogs {
		w.lose(dir, fmt.Errorf("%s: %w", dir, errTooManyLogs))
	}
	slices.SortStableFunc(w.found, newestFirst)
	for _, l := range w.found[:min(len(w.found), maxKernelLogs)] {
		out = append(out, l.path)
	}
	return out, w.unread, w.err
}

// logEntry is a log or a folder.
type logEntry struct {
	path string
	info fs.FileInfo
}

func newestFirst(a, b logEntry) int { return b.info.ModTime().Compare(a.info.ModTime()) }

// logWalk looks for logs in a folder and the folders below it. In each folder the newest come first, so that old ones cannot use up the
// bound.
type logWalk struct {
	left   int  // logs and folders that it may still look at
	cut    bool // there are more
	found  []logEntry
	unread []string
	err    error
}

func (w *logWalk) lose(path string, err error) {
	w.unread, w.err = append(w.unread, path), errors.Join(w.err, err)
}

func (w *logWalk) folder(dir string, at fs.FileInfo, depth int) {
	names, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.lose(dir, err)
	}
	names = slices.DeleteFunc(names, func(e fs.DirEntry) bool {
		return !e.IsDir() && (!e.Type().IsRegular() || !strings.Contains(e.Name(), "dmesg"))
	})
	if len(names) > maxLogEntries {
		w.lose(dir, fmt.Errorf("%s: %w", dir, errTooManyLogs))
		names = names[len(names)-maxLogEntries:] // kdump and systemd name folders by the time
	}
	var entries []logEntry
	for _, e := range slices.Backward(names) {
		if info, err := e.Info(); err == nil { // else gone
			entries = append(entries, logEntry{filepath.Join(dir, e.Name()), info})
		}
	}
	slices.SortStableFunc(entries, newestFirst)
	for _, e := range entries {
		if w.left == 0 {
			w.cut = true
			return
		}
		w.left--
		switch {
		case e.info.IsDir() && depth < logDepth:
			w.folder(e.path, e.info, depth+1)
		case e.info.Mode().IsRegular() && private(e.info) && private(at):
			w.found = append(w.found, e)
		}
	}
}

// readEnd returns a file, or its last maxKernelLog bytes. Files of pstore tell their size only after they were read.
func readEnd(path string) (_ []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, maxKernelLog)
	n, err := f.ReadAt(b, max(0, info.Size()-maxKernelLog))
	if n > 0 || errors.Is(err, io.EOF) {
		return b[:n], nil
	}
	return nil, err
}

// cardReset is WDIOF_CARDRESET of a watchdog's bootstatus: it reset the machine last.
const cardReset = 0x20

// watchdog returns the name of a watchdog that says it reset the machine; empty: none does.
func (b *boots) watchdog() string {
	names, _ := filepath.Glob(filepath.Join(b.sysfs, "class/watchdog/watchdog*"))
	for _, dir := range names[:min(len(names), 16)] {
		text, err := durable.Read(filepath.Join(dir, "bootstatus"), 64)
		if err != nil {
			continue // built without its attributes
		}
		if bits, err := strconv.ParseUint(strings.TrimSpace(string(text)), 0, 32); err == nil && bits&cardReset != 0 {
			name := filepath.Base(dir)
			if of, err := durable.Read(filepath.Join(dir, "identity"), 64); err == nil {
				name += " (" + strings.TrimSpace(string(of)) + ")"
			}
			return name
		}
	}
	return ""
}

// lookAtBoots is that of the daemon; nil: another daemon of the node does it, or the boot has no identity.
func (d *daemon) lookAtBoots() *boots {
	if d.halves[fault.HalfHost] == nil {
		return nil
	}
	id, err := storage.BootID()
	if err != nil {
		d.log.Warn("the end of the machine's last boot is not known", "err", err)
		return nil
	}
	return lookAtBoots(d.cfg.Agent.StateDir, d.cfg.Agent.Sensors.Sysfs, "", id, d.log)
}
