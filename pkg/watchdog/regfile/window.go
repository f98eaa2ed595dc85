package regfile

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Names of words in a window: a register's address, or one of these plus an index.
const (
	nameExtension = 0x1000
	nameCounter   = 0x2000
)

// AppendWords appends all readable words that a half owns, by their names in a window, its watchdog word last and valid.
// It omits the test words, and the counters unless they are requested.
func (f *File) AppendWords(dst []watchdog.WindowWord, half fault.Half, counters bool) []watchdog.WindowWord {
	add := func(name int, c cell) {
		if v, err := f.load("load word", c); err == nil {
			dst = append(dst, watchdog.WindowWord{Name: uint16(name), Value: v})
		}
	}
	own, word := hostCell, watchdog.AddrHostWatchdog
	if half == fault.HalfDNP {
		own, word = dnpCell, watchdog.AddrDNPWatchdog
		for i := range numExtWords {
			if forWindow(i) {
				add(nameExtension+i, extCell(i))
			}
		}
		for i, v := range f.countersIf(counters) {
			dst = append(dst, watchdog.WindowWord{Name: uint16(nameCounter + i), Value: v})
		}
	}
	for i, a := range guardedRegisters {
		if c := registerCells[i]; c.owner == half && a != word {
			add(int(a), c)
		}
	}
	if v, err := f.load("load word", own); err == nil {
		dst = append(dst, watchdog.WindowWord{Name: uint16(word), Value: v | own.valid})
	}
	return dst
}

func (f *File) countersIf(wanted bool) []uint32 {
	if !wanted {
		return nil
	}
	c := f.Counters()
	return c[:]
}

// StoreWords writes words that came through a window, as their owner. It skips names that it does not know, which are of a
// later version, and returns the error of the first word that cannot be written.
func (f *File) StoreWords(words []watchdog.WindowWord) error {
	var first error
	counters, counted := [NumCounters]uint32{}, false
	for _, w := range words {
		var err error
		switch name := int(w.Name); {
		case name >= nameCounter && name < nameCounter+NumCounters:
			counters[name-nameCounter], counted = w.Value, true
		case forWindow(name - nameExtension):
			err = f.store("store word", extCell(name-nameExtension), w.Value)
		case name < nameExtension:
			a := watchdog.Addr(w.Name)
			if c, known := registerCell(a); known {
				err = f.storeChecked("store word", a, c, w.Value)
			}
		}
		if err != nil && first == nil {
			first = fmt.Errorf("word 0x%04x: %w", w.Name, err)
		}
	}
	if counted {
		if err := f.SetCounters(counters); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Revalidate writes a half's watchdog word again with its last value, as the half itself.
func (f *File) Revalidate() error {
	c := hostCell
	if f.half == fault.HalfDNP {
		c = dnpCell
	}
	v, err := f.load("load word", c)
	if err != nil {
		return err
	}
	return f.store("validate word", c, v|c.valid)
}
