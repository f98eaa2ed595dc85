package process

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/schemas"

	"github.com/lofamo/lofamo/internal/executor/controller"
)

// Limits of a look at a Sensors collection.
const (
	maxSensorPages = 4  // pages of the collection, each of at most maxLook bytes
	maxSensorReads = 64 // sensors that a look reads one by one, because the service does not expand them
)

// sensorList collects sensors of a chassis for people.
type sensorList struct {
	good, bad []string
	err       error // the first failure of a resource that the service has
}

// add adds a sensor with its health; without a health it counts as good.
func (l *sensorList) add(health, text string) {
	switch {
	case health == "" || health == string(schemas.OKHealth):
		if len(l.good) < controller.MaxLines {
			l.good = append(l.good, text+": "+cmp.Or(health, "no health stated"))
		}
	case len(l.bad) < controller.MaxLines:
		l.bad = append(l.bad, text+": "+controller.Clean(health))
	}
}

// failed reports whether a read failed. It remembers the cause, unless the service does not have the resource.
func (l *sensorList) failed(err error) bool {
	if err != nil && l.err == nil && !missing(err) {
		l.err = err
	}
	return err != nil
}

// lines returns at most MaxLines lines: the sensors that are not OK, a failure to read sensors, and the others.
func (l *sensorList) lines() []string {
	var failure []string
	if l.err != nil {
		failure = []string{"sensors not read: " + controller.Clean(l.err.Error())}
		l.bad = l.bad[:min(len(l.bad), controller.MaxLines-1)]
	}
	return first(slices.Concat(l.bad, failure, l.good))
}

// missing reports whether a service answers that it does not have a resource.
func missing(err error) bool {
	return slices.Contains([]int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone, http.StatusNotImplemented},
		httpStatus(err))
}

// sensorsOf returns the sensors of a chassis, those not OK first. It reads Thermal and Power. For newer controllers, which lack at least
// one of them, it reads the Sensors collection, or ThermalMetrics if there are no sensors either.
func sensorsOf(c *gofish.APIClient, chassis string) []string {
	var l sensorList
	thermal := l.thermal(c, chassis)
	power := l.power(c, chassis)
	if !thermal || !power {
		if n := l.collection(c, chassis+"/Sensors", thermal); n == 0 && !thermal {
			l.metrics(c, chassis)
		}
	}
	return l.lines()
}

// sensorStatus is the Status of a sensor.
type sensorStatus struct{ State, Health string }

// thermal adds the temperatures of the Thermal resource; false: it could not be read.
func (l *sensorList) thermal(c *gofish.APIClient, chassis string) bool {
	var thermal struct {
		Temperatures []struct {
			Name           string
			ReadingCelsius *float64
			Status         sensorStatus
		}
	}
	if l.failed(get(c, chassis+"/Thermal", &thermal)) {
		return false
	}
	for _, s := range thermal.Temperatures {
		if s.ReadingCelsius != nil {
			l.add(s.Status.Health, fmt.Sprintf("%s %.4g °C", controller.Clean(s.Name), *s.ReadingCelsius))
		}
	}
	return true
}

// power adds the power supplies of the Power resource; false: it could not be read.
func (l *sensorList) power(c *gofish.APIClient, chassis string) bool {
	var power struct {
		PowerSupplies []struct {
			Name             string
			LineInputVoltage *float64
			Status           sensorStatus
		}
	}
	if l.failed(get(c, chassis+"/Power", &power)) {
		return false
	}
	for _, s := range power.PowerSupplies {
		text := controller.Clean(s.Name)
		if s.LineInputVoltage != nil {
			text += fmt.Sprintf(", input %.4g V", *s.LineInputVoltage)
		}
		l.add(s.Status.Health, text)
	}
	return true
}

// metrics adds the temperatures of ThermalMetrics, which state no health.
func (l *sensorList) metrics(c *gofish.APIClient, chassis string) {
	var metrics struct {
		TemperatureReadingsCelsius []struct {
			DeviceName string
			Reading    *float64
		}
	}
	if l.failed(get(c, chassis+"/ThermalSubsystem/ThermalMetrics", &metrics)) {
		return
	}
	for _, s := range metrics.TemperatureReadingsCelsius {
		if s.Reading != nil {
			l.add("", fmt.Sprintf("%s %.4g °C", controller.Clean(s.DeviceName), *s.Reading))
		}
	}
}

// member is a member of a Sensors collection: a whole Sensor if the service has expanded it, or else a link to one.
type member struct {
	link

	Name         string
	Reading      *float64
	ReadingType  string
	ReadingUnits string // of UCUM
	Status       sensorStatus
}

// collection adds the sensors of a Sensors collection and returns their number. It asks for whole sensors if the service can expand them,
// and reads the others one by one. noTemperatures leaves out temperatures, which Thermal has stated.
func (l *sensorList) collection(c *gofish.APIClient, path string, noTemperatures bool) int {
	n, reads := 0, 0
	next := path
	if c.Service.ProtocolFeaturesSupported.ExpandQuery.NoLinks {
		next += "?$expand=."
	}
	for pages := 0; next != "" && pages < maxSensorPages; pages++ {
		var page struct {
			Members []json.RawMessage
			Next    string `json:"Members@odata.nextLink"`
		}
		err := get(c, next, &page)
		if err != nil && pages == 0 && next != path { // it does not expand them after all, or the answer is too long
			next = path
			err = get(c, next, &page)
		}
		if l.failed(err) {
			break
		}
		l.all(path, len(page.Members) <= maxSensors)
		for _, raw := range page.Members[:min(len(page.Members), maxSensors)] {
			var m member
			if l.failed(named(path, json.Unmarshal(raw, &m))) {
				continue
			}
			if m.Name == "" && m.ID != "" {
				if reads++; reads > maxSensorReads {
					l.all(path, false)
					continue
				}
				if l.failed(get(c, m.ID, &m)) {
					continue
				}
			}
			if l.sensor(m, noTemperatures) {
				n++
			}
		}
		next = page.Next
	}
	l.all(path, next == "" || l.err != nil)
	return n
}

// errMore is the note on a collection that is larger than the process reads.
var errMore = errors.New("more sensors than a look reads: some are missing")

// all remembers that a collection was not read to its end.
func (l *sensorList) all(path string, is bool) {
	if !is {
		l.failed(named(path, errMore))
	}
}

// named adds the path of a resource to an error.
func named(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// units translates UCUM for people. Other units stand as the controller states them.
var units = map[string]string{"Cel": "°C", "[degF]": "°F", "{rev}/min": "RPM"}

// sensor adds one sensor. It leaves out a sensor that is absent, disabled or without a reading, unless the controller states a fault of it.
func (l *sensorList) sensor(m member, noTemperatures bool) bool {
	fine := m.Status.Health == "" || m.Status.Health == string(schemas.OKHealth)
	switch {
	case noTemperatures && m.ReadingType == string(schemas.TemperatureReadingType):
		return false
	case fine && (m.Reading == nil || m.Status.State != "" && m.Status.State != string(schemas.EnabledState)):
		return false
	}
	text := controller.Clean(m.Name)
	if m.Reading != nil {
		text += fmt.Sprintf(" %.4g", *m.Reading)
		if unit := controller.Clean(cmp.Or(units[m.ReadingUnits], m.ReadingUnits)); unit != "" {
			text += " " + unit
		}
	}
	l.add(m.Status.Health, text)
	return true
}
