package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

// Registers returns the parts that show a register page. They open the page separately and read-only, so that the
// half's own mapping is left alone and damage of the file shows.
func Registers(path string, links []grid.Direction) []Part {
	return []Part{
		{"registers.txt", func() ([]byte, error) { return registersText(path, links) }},
		{"registers.json", func() ([]byte, error) { return registersJSON(path) }},
	}
}

func readRegisters(path string, more func(*regfile.File)) (_ []watchdog.Word, err error) {
	f, err := regfile.OpenReadOnly(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var out []watchdog.Word
	for _, info := range watchdog.Registers() {
		v, err := f.Load(info.Addr)
		if err != nil {
			out = append(out, watchdog.UnreadWord(info, err))
			continue
		}
		out = append(out, watchdog.ReadWord(info.Addr, v))
	}
	if more != nil {
		more(f)
	}
	return out, nil
}

func registersJSON(path string) ([]byte, error) {
	list, err := readRegisters(path, nil)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(list, "", "  ")
}

func registersText(path string, links []grid.Direction) ([]byte, error) {
	var b bytes.Buffer
	list, err := readRegisters(path, func(f *regfile.File) { writePage(&b, f, links) })
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		fmt.Fprintf(&b, "\n%s  %-10s  %s\n", r.Address, r.Value, r.Name)
		for _, d := range r.Fields {
			fmt.Fprintf(&b, "    bits %2d-%-2d  %-28s %10d  %s\n", d.Bits[0], d.Bits[1], d.Name, d.Value, d.Text)
		}
		if r.Error != "" {
			fmt.Fprintf(&b, "    invalid: %s\n", r.Error)
		}
	}
	return b.Bytes(), nil
}

// writePage writes the page's content beyond the paper's registers.
func writePage(b *bytes.Buffer, f *regfile.File, links []grid.Direction) {
	fmt.Fprintf(b, "Register page %s\n", f.Path())
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		fmt.Fprintf(b, "%-4s half: boot epoch %d, rung %d times\n", h, f.Epoch(h), f.Doorbells(h))
	}
	for _, d := range links {
		w := f.LinkDetail(d)
		text := fmt.Sprintf("undefined 0x%08x", w)
		if det, err := torus.DecodeDetail(w); err == nil {
			text = det.String()
		}
		fmt.Fprintf(b, "link %s: %s; neighbour's last host word with a cause 0x%08x\n", d, text, f.NeighbourHost(d)&^watchdog.BitOfMap)
	}
	for _, c := range []fault.Component{fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage} {
		if v, err := f.Sensor(c); err == nil {
			fmt.Fprintf(b, "%s: %.3f\n", c, float64(v)/1000)
		}
	}
}
