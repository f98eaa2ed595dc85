package bundle

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// manifest notes the outcome of each part.
type manifest struct {
	here, out []string
}

func (m *manifest) add(name string, kept, size int64) {
	line := fmt.Sprintf("%-28s %10d bytes", name, kept)
	if kept < size {
		line += fmt.Sprintf(", the end of %d: the first %d were cut", size, size-kept)
	}
	m.here = append(m.here, line)
}

func (m *manifest) note(name, what string) {
	m.here = append(m.here, fmt.Sprintf("%-28s %s", name, what))
}

func (m *manifest) leaveOut(name, why string) {
	m.out = append(m.out, fmt.Sprintf("%-28s %s", name, oneLine(why)))
}

// oneLine shortens an error to one line of bounded length.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return s[:min(len(s), 200)]
}

func (m *manifest) text(cfg Config, began, ended time.Time, maxSize uint64) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "Diagnostic bundle of the %s half of node %s\n\n", cfg.Origin.Half, cfg.Origin.Node)
	fmt.Fprintf(&b, "gathered     %s, in %s\n", began.UTC().Format(time.RFC3339Nano), ended.Sub(began).Round(time.Millisecond))
	fmt.Fprintf(&b, "at most      %d bytes, compressed\n", maxSize)
	fmt.Fprintf(&b, "version      %s\n", compactJSON(cfg.Version))
	fmt.Fprintf(&b, "\nIn this archive\n\n")
	for _, l := range m.here {
		fmt.Fprintf(&b, "  %s\n", l)
	}
	fmt.Fprintf(&b, "\nLeft out\n\n")
	for _, l := range m.out {
		fmt.Fprintf(&b, "  %s\n", l)
	}
	fmt.Fprintf(&b, "  %-28s never part of a bundle\n", "private keys, gossip key")
	return []byte(b.String())
}

// logName returns a log file's name in the archive.
func logName(path string) string {
	const most = 90 // bytes; the archive's format has 100, in ASCII
	name := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, filepath.Base(path))
	return "log/" + name[max(0, len(name)-most):]
}
