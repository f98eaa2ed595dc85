package servicenet

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Bounds of the last words in the health of one half.
const (
	MaxLastWords    = 2
	MaxWordsContext = 4 // lines
)

// cutWords leaves out the context of last words, then all but the newest, then the address of their sender, and finally all last words.
func cutWords(all []*lofamov1.LastWords, cut cutting) []*lofamov1.LastWords {
	switch {
	case len(all) == 0 || cut >= onlyCauses:
		return nil
	case cut >= noTests:
		all = all[:1]
	}
	out := make([]*lofamov1.LastWords, len(all))
	for i, w := range all {
		out[i] = &lofamov1.LastWords{Node: w.GetNode(), From: w.GetFrom(), End: w.GetEnd(), Line: w.GetLine(), Serial: w.GetSerial(),
			AgeMs: w.GetAgeMs()}
		if cut >= noTexts {
			out[i].From = ""
		}
	}
	return out
}

func appendWords(b []byte, w *lofamov1.LastWords) []byte {
	b = appendText(b, 1, w.GetNode())
	b = appendText(b, 2, w.GetFrom())
	b = appendUint(b, 3, uint64(w.GetEnd()))
	b = appendText(b, 4, w.GetLine())
	for _, line := range w.GetContext() {
		b = protowire.AppendTag(b, 5, protowire.BytesType)
		b = protowire.AppendString(b, line)
	}
	b = appendWord(b, 6, w.GetSerial())
	return appendUint(b, 10, uint64(w.GetAgeMs()))
}

func (c *canonical) readWords() *lofamov1.LastWords {
	w := &lofamov1.LastWords{Node: c.string(1), From: c.string(2), End: lofamov1.BootEnd(c.uint(3, uint64(lofamov1.BootEnd_BOOT_UNKNOWN))),
		Line: c.string(4)}
	for c.next(5) && len(w.Context) <= MaxWordsContext {
		w.Context = append(w.Context, c.string(5))
	}
	w.Serial, w.AgeMs = c.word(6), uint32(c.uint(10, math.MaxUint32))
	return w
}

func checkLastWords(field string, all []*lofamov1.LastWords) error {
	if n := len(all); n > MaxLastWords {
		return refuse(RefusedField, "%s.last_words: given %d: want at most %d", field, n, MaxLastWords)
	}
	for i, w := range all {
		switch end := w.GetEnd(); {
		case end < 0 || end > lofamov1.BootEnd_BOOT_UNKNOWN:
			return refuse(RefusedField, "%s.last_words[%d].end: given %d: want 0 to %d", field, i, end, lofamov1.BootEnd_BOOT_UNKNOWN)
		case len(w.GetContext()) > MaxWordsContext:
			return refuse(RefusedField, "%s.last_words[%d].context: given %d lines: want at most %d", field, i, len(w.GetContext()),
				MaxWordsContext)
		}
		for _, text := range append([]string{w.GetNode(), w.GetFrom(), w.GetLine(), w.GetReceivedBy()}, w.GetContext()...) {
			if err := checkText(field+".last_words", text); err != nil {
				return err
			}
		}
	}
	return nil
}

// LastWordsText describes for people the lines that a dead machine's kernel sent by netconsole; empty: there are none.
func LastWordsText(w *lofamov1.LastWords) string {
	if w.GetLine() == "" {
		return ""
	}
	by := cmp.Or(w.GetReceivedBy(), "a node")
	text := fmt.Sprintf("last kernel words, received by %s%s, not authenticated: %s", by, after(" from ", w.GetFrom()), w.GetLine())
	if len(w.GetContext()) > 0 {
		text += " (around it: " + strings.Join(w.GetContext(), " | ") + ")"
	}
	return text
}

// cutBoot leaves out the text of a boot's end, and then the whole.
func cutBoot(b *lofamov1.LastBoot, cut cutting) *lofamov1.LastBoot {
	switch {
	case b == nil || cut < noDetails:
		return b
	case cut == noDetails:
		return &lofamov1.LastBoot{End: b.GetEnd(), Boot: b.GetBoot()}
	}
	return nil
}

// LastBootWords describes for people how a machine's last boot ended; empty: not known.
func LastBootWords(b *lofamov1.LastBoot) string {
	what := b.GetDetail()
	switch b.GetEnd() {
	case lofamov1.BootEnd_BOOT_END_UNSPECIFIED:
		return ""
	case lofamov1.BootEnd_BOOT_PANIC:
		what = cmp.Or(what, "a kernel panic")
	case lofamov1.BootEnd_BOOT_OOPS:
		what = "a reset or power loss after a kernel oops" + after(": ", what)
	case lofamov1.BootEnd_BOOT_LOCKUP:
		what = "a processor that locked up" + after(": ", what)
	case lofamov1.BootEnd_BOOT_WATCHDOG:
		what = "a reset by the watchdog" + after(" ", what)
	case lofamov1.BootEnd_BOOT_ORDERLY:
		what = "an orderly shutdown or reboot" + after(": ", what)
	case lofamov1.BootEnd_BOOT_POWER_LOSS:
		what = "power loss, or a reset without a trace" + after(": ", what)
	default:
		what = "an unknown cause" + after(": ", what)
	}
	return "last boot ended by: " + what
}

// DeathNotes describes the death of an incident's machine for people, a sentence each; none: nothing is known. The last words are
// text from a dead kernel, and not authenticated.
func DeathNotes(in *lofamov1.Incident) (out []string) {
	if w := in.GetKernel().GetWhy(); w != "" {
		out = append(out, w)
	}
	return append(out, ofMachine(in.GetLastWords(), in.GetLastBoot())...)
}

// MachineNotes describes for people the last words of the machine's kernel and the end of its last boot, as far as the health of its host
// half has them, a sentence each.
func MachineNotes(h *lofamov1.HalfHealth) []string {
	var texts []string
	for _, w := range h.GetLastWords() {
		texts = append(texts, LastWordsText(w))
	}
	return ofMachine(append(texts, LastBootWords(h.GetLastBoot()))...)
}

// NodeNotes describes for people whether the kernels of a node's FAILED halves are dead, and its MachineNotes, a sentence each.
func NodeNotes(n *lofamov1.Node) (out []string) {
	if w := n.GetHostKernel().GetWhy(); w != "" {
		out = append(out, "the host half: "+w)
	}
	if w := n.GetDnpKernel().GetWhy(); w != "" {
		out = append(out, "the DNP half: "+w)
	}
	return append(out, MachineNotes(n.GetHostHealth())...)
}

func ofMachine(texts ...string) (out []string) {
	for _, w := range texts {
		if w != "" {
			out = append(out, "the machine's "+w)
		}
	}
	return out
}

func after(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}
