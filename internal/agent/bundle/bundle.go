// Package bundle makes the diagnostic bundle of a half: a gzipped tar archive of the data that a person needs to
// diagnose a node that behaves oddly. It holds
//
//	registers.txt, registers.json   the register page: raw words with names, decoded; links in detail
//	register-history.txt            its latest changes (History)
//	config.yaml                     the half's configuration: names of key files, never keys
//	delivery.json                   the delivery status of the half's reports
//	metrics.txt, links.txt, …       the half's other data about itself
//	version.json
//	proc/…                          uptime, load, memory, pressure, interfaces' counters, interrupts
//	interfaces.txt                  network interfaces and addresses
//	log/…                           the ends of the halves' logs, if they are files
//	kernel.log                      the end of the kernel's log
//	MANIFEST.txt                    last: the contents, the parts cut or left out, and why
//
// An unavailable part does not make a bundle fail: it is left out, and the MANIFEST says why. A bundle never exceeds
// the requested size: large parts lose their beginning.
//
// Gathering does not disturb the node: it works in short pieces with rests between them (Config.Rest), within
// Config.Within, and ends with its context. The package changes nothing except the file that it writes, and decides
// nothing about the node.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Size bounds of a bundle, in bytes.
const (
	// MinSize is the least allowed size of a bundle: below, nothing useful remains.
	MinSize = 64 << 10
	// manifestSize is reserved for the MANIFEST and the ends of the archive.
	manifestSize = 32 << 10
	smallPart    = 512 << 10 // the maximum of a part without a bound of its own
	logPart      = 16 << 20  // of one log file
	kernelPart   = 1 << 20   // of the kernel's log
	// piece is the number of bytes compressed at a time: some 200 µs of work.
	piece = 16 << 10
)

// Config sets the contents of a bundle, and the load of gathering it.
type Config struct {
	Origin  fault.Origin
	Version any           // as JSON
	Proc    string        // the mount point of proc
	Kernel  string        // the kernel's log device; empty: none is read
	Within  time.Duration // the maximum time; parts not gathered by then are left out
	Rest    time.Duration // after each piece of work: about as long as the work itself
	Parts   []Part        // of the half, in this order; the node's parts follow
	Logs    []string      // files
	Now     func() time.Time
}

// DefaultConfig returns the bounds; the half sets the contents.
func DefaultConfig(origin fault.Origin) Config {
	return Config{
		Origin: origin, Proc: "/proc", Kernel: "/dev/kmsg", Within: 10 * time.Second, Rest: 200 * time.Microsecond, Now: time.Now,
	}
}

// Part is one file of the archive.
type Part struct {
	Name string
	// Make returns the content. It runs on the gathering goroutine and may hold the half's mutex for a short time.
	Make func() ([]byte, error)
}

// FileName returns the node's name for a bundle: node, half and UTC time.
func FileName(origin fault.Origin, now time.Time) string {
	return fmt.Sprintf("%s-%s-%s.tar.gz", origin.Node, origin.Half, now.UTC().Format("20060102T150405Z"))
}

// Gather writes a bundle of at most maxSize bytes to w.
func Gather(ctx context.Context, cfg Config, maxSize uint64, w io.Writer) error {
	if maxSize < MinSize {
		return fmt.Errorf("max_size: given %d: want at least %d", maxSize, MinSize)
	}
	g := newGatherer(ctx, cfg, maxSize, w)
	if err := g.run(); err != nil {
		return fmt.Errorf("gather the bundle of %s: %w", cfg.Origin, err)
	}
	return nil
}

// gatherer is a bundle being written.
type gatherer struct {
	ctx      context.Context
	cfg      Config
	began    time.Time
	deadline time.Time
	maxSize  uint64
	zip      *gzip.Writer
	tar      *tar.Writer
	room     int64 // bytes that may still be written to the archive, uncompressed
	manifest manifest
}

func newGatherer(ctx context.Context, cfg Config, maxSize uint64, w io.Writer) *gatherer {
	now := cfg.Now()
	// A level above 0 is always valid.
	zip, _ := gzip.NewWriterLevel(&patient{ctx: ctx, w: w}, gzip.BestSpeed)
	g := &gatherer{
		ctx: ctx, cfg: cfg, began: now, deadline: now.Add(cfg.Within), maxSize: maxSize, zip: zip,
		// Incompressible data grows by less than a thousandth.
		room: int64(maxSize-maxSize/512) - manifestSize,
	}
	g.tar = tar.NewWriter(&gentle{ctx: ctx, w: zip, rest: cfg.Rest})
	return g
}

func (g *gatherer) run() error {
	for _, p := range append(g.halfParts(), g.nodeParts()...) {
		if err := g.add(p); err != nil {
			return err
		}
	}
	if err := g.addLogs(); err != nil {
		return err
	}
	return g.close()
}

func (g *gatherer) close() error {
	text := g.manifest.text(g.cfg, g.began, g.cfg.Now(), g.maxSize)
	if err := g.file("MANIFEST.txt", text[:min(len(text), manifestSize/2)]); err != nil {
		return err
	}
	return errors.Join(g.tar.Close(), g.zip.Close())
}

// add adds a part, or notes why it is missing.
func (g *gatherer) add(p Part) error {
	if err := g.ctx.Err(); err != nil {
		return err
	}
	if why := g.late(); why != "" {
		g.manifest.leaveOut(p.Name, why)
		return nil
	}
	b, err := p.Make()
	if err != nil {
		g.manifest.leaveOut(p.Name, err.Error())
		return nil
	}
	most := int64(smallPart)
	if p.Name == kernelFile {
		most = min(kernelPart, max(most, g.room/2)) // the logs that follow need room, too
	}
	kept := g.fit(most, int64(len(b)))
	if kept < 0 || kept == 0 && len(b) > 0 {
		g.manifest.leaveOut(p.Name, "no room is left")
		return nil
	}
	g.manifest.add(p.Name, kept, int64(len(b)))
	return g.file(p.Name, b[int64(len(b))-kept:])
}

// late returns a reason if the time is over.
func (g *gatherer) late() string {
	if g.cfg.Now().Before(g.deadline) {
		return ""
	}
	return fmt.Sprintf("gathering had taken %s already", g.cfg.Within)
}

// pause rests between two pieces of work. It returns an error if the time is over, or the context has ended.
func (g *gatherer) pause() error {
	time.Sleep(g.cfg.Rest)
	if why := g.late(); why != "" {
		return errors.New(why)
	}
	return g.ctx.Err()
}

// fit returns how many of the given bytes may be added, -1 for none. An empty part is a part.
func (g *gatherer) fit(most, size int64) int64 {
	const around = 2 * 512 // header, and padding of the content
	if g.room <= around {
		return -1
	}
	return min(size, most, g.room-around)
}

func (g *gatherer) header(name string, size int64) error {
	g.room -= size + 2*512
	return g.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: g.began, Format: tar.FormatUSTAR,
	})
}

func (g *gatherer) file(name string, b []byte) error {
	if err := g.header(name, int64(len(b))); err != nil {
		return err
	}
	_, err := g.tar.Write(b)
	return err
}

// addLogs adds the ends of the log files, which share the remaining room. It reads them while writing, because they may
// exceed the memory.
func (g *gatherer) addLogs() error {
	if len(g.cfg.Logs) == 0 {
		g.manifest.leaveOut("log/", "the halves do not log to a file that they know of")
	}
	for i, path := range g.cfg.Logs {
		share := (g.room - 1) / int64(len(g.cfg.Logs)-i)
		if err := g.addLog(path, min(share, logPart)); err != nil {
			return err
		}
	}
	return nil
}

func (g *gatherer) addLog(path string, most int64) error {
	name := logName(path)
	if why := g.late(); why != "" {
		g.manifest.leaveOut(name, why)
		return g.ctx.Err()
	}
	f, size, err := openRegular(path)
	if err != nil {
		g.manifest.leaveOut(name, err.Error())
		return nil
	}
	defer func() { _ = f.Close() }()
	kept := g.fit(most, size)
	if kept <= 0 && size > 0 || kept < 0 {
		g.manifest.leaveOut(name, "no room is left")
		return nil
	}
	g.manifest.add(name, kept, size)
	return g.copyEnd(name, f, size-kept, kept)
}

// copyEnd adds a file's content from an offset on. If the file has shrunk, or the time is over, zeros follow, because
// the archive already holds the size.
func (g *gatherer) copyEnd(name string, f *os.File, from, kept int64) error {
	if err := g.header(name, kept); err != nil {
		return err
	}
	n, err := io.Copy(g.tar, inTime{io.NewSectionReader(f, from, kept), g})
	if err == nil && n == kept {
		return nil
	}
	if ctxErr := g.ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	g.manifest.note(name, fmt.Sprintf("only %d bytes could be read: zeros follow", n))
	_, ferr := io.CopyN(g.tar, zeros{}, kept-n)
	return ferr
}

// inTime ends a file when the time is over.
type inTime struct {
	io.Reader
	g *gatherer
}

func (r inTime) Read(b []byte) (int, error) {
	if r.g.late() != "" {
		return 0, io.EOF
	}
	return r.Reader.Read(b)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// gentle writes in small pieces with rests, so that a half with a single thread, perhaps a real-time one, runs in time
// and is not killed for using too much processor time.
type gentle struct {
	ctx  context.Context
	w    io.Writer
	rest time.Duration
	done int // bytes since the last rest
}

func (p *gentle) Write(b []byte) (int, error) {
	n := 0
	for len(b) > 0 {
		if err := p.ctx.Err(); err != nil {
			return n, err
		}
		m, err := p.w.Write(b[:min(len(b), piece-p.done)])
		n, p.done, b = n+m, p.done+m, b[m:]
		if err != nil {
			return n, err
		}
		if p.done >= piece {
			p.done = 0
			time.Sleep(p.rest)
		}
	}
	return n, nil
}

// patient ends the compressed side with the context, too.
type patient struct {
	ctx context.Context
	w   io.Writer
}

func (p *patient) Write(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}
