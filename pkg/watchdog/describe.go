package watchdog

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// Field is one field of a register word, for people.
type Field struct {
	Name  string `json:"name"`
	Bits  [2]int `json:"bits"` // lowest and highest bit, both inclusive
	Value uint32 `json:"value"`
	Text  string `json:"text"` // meaning of the value
}

// Describe splits a register word into its fields. The error names the address, and for each bad field its value and
// the allowed values. Describe also returns the fields with an error, so that a damaged word can still be inspected.
func Describe(a Addr, v uint32) (RegisterInfo, []Field, error) {
	reg, ok := Lookup(a)
	if !ok {
		return RegisterInfo{}, nil, unknownAddress(a)
	}
	fields := make([]Field, 0, len(reg.layout))
	for _, f := range reg.layout {
		text, _ := f.text(f.value(v))
		fields = append(fields, Field{Name: f.name, Bits: [2]int{f.low, f.top}, Value: f.value(v), Text: text})
	}
	return reg, fields, Check(a, v)
}

// Word is one register with its content, for people and for machines that read JSON.
type Word struct {
	Address string  `json:"address"` // hexadecimal, "0x00000ec0"
	Name    string  `json:"name"`
	Owner   string  `json:"owner"` // the half that writes it: "host" or "dnp"
	Mask    string  `json:"mask"`  // hexadecimal, of the bits that exist
	Value   string  `json:"value,omitempty"`
	Fields  []Field `json:"fields,omitempty"` // from the lowest bit
	Error   string  `json:"error,omitempty"`  // why the register cannot hold the value, or why it was unreadable
}

// ReadWord splits the word at an address into its fields. Error names values that the register cannot hold.
func ReadWord(a Addr, v uint32) Word {
	reg, fields, err := Describe(a, v)
	w := reg.word()
	w.Address, w.Value, w.Fields = a.String(), fmt.Sprintf("0x%08x", v), fields
	if err != nil {
		w.Error = err.Error()
	}
	return w
}

// UnreadWord is a register whose word was not available.
func UnreadWord(reg RegisterInfo, why error) Word {
	w := reg.word()
	w.Error = why.Error()
	return w
}

func (r RegisterInfo) word() Word {
	w := Word{Address: r.Addr.String(), Name: r.Name, Mask: fmt.Sprintf("0x%08x", r.Mask)}
	if r.Owner.Valid() {
		w.Owner = r.Owner.String()
	}
	return w
}

// ReadNode splits the three words that a node sends to the supervisors: its DNP watchdog, its host watchdog and its
// remote fault descriptor (seed 001, Tables III to V).
func ReadNode(dnp, host, remote uint32) []Word {
	return []Word{ReadWord(AddrDNPWatchdog, dnp), ReadWord(AddrHostWatchdog, host), ReadWord(AddrRemoteFaultDescriptor, remote)}
}

// Check refuses a word that its register cannot hold: bits outside the mask, a health field of 11, thresholds out of
// order, an address without a register. It names every bad field at once.
func Check(a Addr, v uint32) error {
	reg, ok := Lookup(a)
	if !ok {
		return unknownAddress(a)
	}
	var errs []error
	if out := v &^ reg.Mask; out != 0 {
		errs = append(errs, fmt.Errorf("register %s (%s): value 0x%08x has bits %s outside the mask: want only bits of 0x%08x",
			a, reg.Name, v, bitList(out), reg.Mask))
	}
	for _, f := range reg.layout {
		if f.kind != kindHealth && f.kind != kindRange {
			continue // every value of the other kinds is defined
		}
		if f.value(v) == uint32(healthUndefined) {
			errs = append(errs, fmt.Errorf("register %s (%s): value 0x%08x: field %q, bits %d-%d, is 3 (11): want %s",
				a, reg.Name, v, f.name, f.low, f.top, f.allowed()))
		}
	}
	if a == AddrTemperatureThresholds || a == AddrPowerThresholds || a == AddrVoltageThresholds {
		if _, err := DecodeThresholds(v); err != nil {
			errs = append(errs, fmt.Errorf("register %s (%s): %w", a, reg.Name, err))
		}
	}
	return errors.Join(errs...)
}

func unknownAddress(a Addr) error {
	names := make([]string, 0, len(registers))
	for _, r := range registers {
		names = append(names, r.Addr.String())
	}
	return fmt.Errorf("register %s: no such address: want one of %s", a, strings.Join(names, ", "))
}

func (f fieldLayout) allowed() string {
	if f.kind == kindRange {
		return "0 normal, 1 warning or 2 alarm"
	}
	return "0 normal, 1 sick or 2 broken"
}

// text returns the meaning of the field's value, and false if it has none.
func (f fieldLayout) text(v uint32) (string, bool) {
	pick := func(names ...string) (string, bool) {
		if int(v) >= len(names) {
			return "undefined", false
		}
		return names[v], true
	}
	switch f.kind {
	case kindValid:
		return pick("not valid", "valid")
	case kindFails:
		return pick("healthy", "fails")
	case kindBroken:
		return pick("normal", "broken")
	case kindRaised:
		return pick("clear", "raised")
	case kindUsable:
		return pick("masked", "usable")
	case kindHealth:
		return pick("normal", "sick", "broken")
	case kindRange:
		return pick("normal", "warning", "alarm")
	case kindNumber:
		return fmt.Sprint(v), true
	case kindUnassigned:
		return fmt.Sprintf("0x%x", v), true
	default: // the sensors' codes
		return f.codeText(byte(v)), true
	}
}

func (f fieldLayout) codeText(code byte) string {
	switch {
	case code == noReading:
		return "none"
	case f.kind == kindCelsius && !CelsiusCodeValid(code):
		return fmt.Sprintf("%d °C (outside Table VII)", DecodeCelsius(code))
	case f.kind == kindCelsius:
		return fmt.Sprintf("%d °C", DecodeCelsius(code))
	case f.kind == kindWatts:
		return fmt.Sprintf("%g W", DecodeWatts(code))
	}
	return fmt.Sprintf("%g V", DecodeVolts(code))
}

// bitList lists the set bits, lowest first.
func bitList(v uint32) string {
	var s []string
	for ; v != 0; v &= v - 1 {
		s = append(s, fmt.Sprint(bits.TrailingZeros32(v)))
	}
	return strings.Join(s, ", ")
}
