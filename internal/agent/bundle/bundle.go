// Package bundle makes the diagnostic bundle of a half: a gzipped tar archive of what a person wants to
// see of a node that behaves oddly. It holds
//
//	registers.txt, registers.json   the register page: raw words with names, decoded; links in detail
//	register-history.txt            what changed in it lately (History)
//	config.yaml                     the half's configuration: names of key files, never keys
//	delivery.json                   how the half's reports fare
//	metrics.txt, links.txt, …       what else the half says of itself
//	version.json
//	proc/…                          uptime, load, memory, pressure, interfaces' counters, interrupts
//	interfaces.txt                  network interfaces and addresses
//	log/…                           the ends of the halves' logs, where they are files
//	kernel.log                      the end of the kernel's log
//	MANIFEST.txt                    last: what is here, what was cut or left out, and why
//
// Nothing that cannot be had makes a bundle fail: it is left out, and the MANIFEST says why. A bundle
// never has more than the bytes asked for: large parts are cut from their beginning.
//
// Gathering is made to disturb nobody: it works in short pieces with rests between them (Config.Rest),
// within Config.Within, and ends with its context. The package reads; it changes nothing but the file it
// writes, and it decides nothing about the node.
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

// Bounds of a bundle, in bytes.
const (
	// MinSize is the least that a bundle may be limited to: below, nothing useful remains.
	MinSize = 64 << 10
	// manifestSize is kept free for the MANIFEST and the ends of the archive.
	manifestSize = 32 << 10
	smallPart    = 512 << 10 // the most of a part that has no bound of its own
	logPart      = 16 << 20  // of one log file
	kernelPart   = 1 << 20
	// piece is how much is compressed at a time: some 200 µs of work.
	piece = 16 << 10
)

// Config says what is gathered, and how gently.
type Config struct {
	Origin  fault.Origin
	Version any           // as JSON
	Proc    string        // where proc is mounted
	Kernel  string        // the kernel's log device; empty: none is read
	Within  time.Duration // most that gathering may take; what is not there then is left out
	Rest    time.Duration // after each piece of work: about as long as the work itself
	Parts   []Part        // of the half, in this order, before those of the node
	Logs    []string      // files
	Now     func() time.Time
}

// DefaultConfig returns the bounds; what is gathered is the half's matter.
func DefaultConfig(origin fault.Origin) Config {
	return Config{
		Origin: origin, Proc: "/proc", Kernel: "/dev/kmsg", Within: 10 * time.Second, Rest: 200 * time.Microsecond, Now: time.Now,
	}
}

// Part is one file of the archive.
type Part struct {
	Name string
	// Make returns the content. It runs on the gathering goroutine and may take the half's mutex, shortly.
	Make func() ([]byte, error)
}

// FileName is what the node calls a bundle: node, half and UTC time.
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

// gatherer is one bundle in the making.
type gatherer struct {
	ctx      context.Context
	cfg      Config
	began    time.Time
	deadline time.Time
	maxSize  uint64
	zip      *gzip.Writer
	tar      *tar.Writer
	room     int64 // bytes of archive that may still be written, uncompressed
	manifest manifest
}

func newGatherer(ctx context.Context, cfg Config, maxSize uint64, w io.Writer) *gatherer {
	now := cfg.Now()
	// A level above 0 is always valid.
	zip, _ := gzip.NewWriterLevel(&patient{ctx: ctx, w: w}, gzip.BestSpeed)
	g := &gatherer{
		ctx: ctx, cfg: cfg, began: now, deadline: now.Add(cfg.Within), maxSize: maxSize, zip: zip,
		// What cannot be compressed grows, by less than a thousandth.
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

// add adds a part, or says why it is not there.
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
	kept := g.fit(smallPart, int64(len(b)))
	if kept <= 0 {
		g.manifest.leaveOut(p.Name, "no room is left")
		return nil
	}
	g.manifest.add(p.Name, kept, int64(len(b)))
	return g.file(p.Name, b[int64(len(b))-kept:])
}

// late says that the time is over.
func (g *gatherer) late() string {
	if g.cfg.Now().Before(g.deadline) {
		return ""
	}
	return fmt.Sprintf("gathering had taken %s already", g.cfg.Within)
}

// fit returns how many of so many bytes may be added, -1 for none. An empty part is a part.
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

// addLogs adds the ends of the log files; they share what room is left, and are read as they are
// written: there may be more than fits into memory.
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

// copyEnd adds what a file holds from an offset on. When the file has become shorter, or the time is
// over, zeros follow: the size stands in the archive already.
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

// gentle writes in small pieces with rests, so that a half that has but one thread, perhaps a
// real-time one, runs in time and is not killed for running too long.
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
