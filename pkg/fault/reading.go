package fault

import (
	"fmt"
	"math"
	"time"
)

// Quantity is the physical quantity of a reading.
type Quantity uint8

// The quantities, with their units.
const (
	QuantityTemperature     Quantity = iota + 1 // °C
	QuantityPower                               // W
	QuantityVoltage                             // V
	QuantityCorrectedErrors                     // of memory, errors per second
	QuantityCRCRatio                            // of a link, lost or damaged frames over all
)

var (
	quantityNames = names{"", "temperature", "power", "voltage", "corrected-errors", "crc-ratio"}
	quantityUnits = [...]string{"", "°C", "W", "V", "/s", ""}
)

func (q Quantity) String() string { return quantityNames.str("Quantity", uint8(q)) }

// Valid reports whether q is one of the quantities.
func (q Quantity) Valid() bool { return q >= QuantityTemperature && q <= QuantityCRCRatio }

// Unit returns the unit, empty for a ratio.
func (q Quantity) Unit() string {
	if !q.Valid() {
		return ""
	}
	return quantityUnits[q]
}

// ParseQuantity parses a quantity's name as String prints it.
func ParseQuantity(s string) (Quantity, error) {
	v, err := quantityNames.parse("quantity", s)
	return Quantity(v), err
}

// Of reports whether the quantity is one of the component's.
func (q Quantity) Of(c Component) bool {
	switch q {
	case QuantityTemperature:
		return c == ComponentTemperature
	case QuantityPower:
		return c == ComponentPower
	case QuantityVoltage:
		return c == ComponentVoltage
	case QuantityCorrectedErrors:
		return c == ComponentMemory
	case QuantityCRCRatio:
		_, link := c.LinkDirection()
		return link
	}
	return false
}

// Reading is a measured value of the origin's own node that may be approaching a threshold. It does not contain the
// state: an Observation does.
type Reading struct {
	Component Component
	Quantity  Quantity
	Value     float32
	Threshold float32 // at which the component becomes SICK; above Value or below it
	// Age is the time from the measurement to the sending of the report, on the observer's clock.
	Age time.Duration
}

// MaxReadings is the maximum number in a report: one of each sensor and of each link.
const MaxReadings = 10

// Check returns an error if the reading is invalid.
func (r Reading) Check() error {
	finite := func(v float32) bool { return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) }
	switch {
	case !r.Component.Valid():
		return fmt.Errorf("reading.component: given %d: want 1 to %d", r.Component, NumComponents-1)
	case !r.Quantity.Of(r.Component):
		return fmt.Errorf("reading.quantity: given %s: want one of the quantities of %s", r.Quantity, r.Component)
	case !finite(r.Value):
		return fmt.Errorf("reading.value: given %v: want a number", r.Value)
	case !finite(r.Threshold):
		return fmt.Errorf("reading.threshold: given %v: want a number", r.Threshold)
	}
	return nil
}
