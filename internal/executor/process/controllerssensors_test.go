package process

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/internal/executor/process/powertest"
)

// modern returns a Sensor as newer controllers state it.
func modern(name string, reading any, units, state, health string) map[string]any {
	s := map[string]any{"State": state}
	if health != "" {
		s["Health"] = health
	}
	return map[string]any{"@odata.type": "#Sensor.v1_10_0.Sensor", "Id": name, "Name": name, "Reading": reading, "ReadingUnits": units,
		"ReadingType": map[string]string{"Cel": "Temperature", "V": "Voltage"}[units], "Status": s}
}

// TestSensorsCollectionIsRead: of a controller without Thermal and Power, with and without $expand, and with one that it announces and
// refuses.
func TestSensorsCollectionIsRead(t *testing.T) {
	t.Parallel()
	members := []map[string]any{
		modern("Inlet", 23.5, "Cel", "Enabled", "OK"), modern("CPU 1", 97, "Cel", "Enabled", "Critical"),
		modern("Fan 3", nil, "{rev}/min", "Enabled", "Warning"), modern("P12V", 12.06, "V", "Enabled", ""),
		modern("CPU 2", nil, "Cel", "Absent", ""), modern("Spare", 1, "W", "Disabled", "OK"),
		modern("Fan 4", 8400, "{rev}/min", "Enabled", "OK"),
	}
	want := []string{"CPU 1 97 °C: Critical", "Fan 3: Warning", "Inlet 23.5 °C: OK", "P12V 12.06 V: no health stated", "Fan 4 8400 RPM: OK"}
	for name, tc := range map[string]struct {
		expands  bool
		refused  bool
		requests int // for sensors
	}{
		"expanded":                         {true, false, 1},
		"one by one":                       {false, false, 1 + len(members)},
		"announces $expand and refuses it": {true, true, 2 + len(members)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := powertest.New(t)
			e.Collection(tc.expands, members...)
			if tc.refused {
				e.Instead(powertest.Sensors+"?$expand=.", statusOnly(http.StatusBadRequest))
			}
			before := requestsOfLook(t)
			a := lookAt(t, place(controllerAt(e)), true)
			if a.Finding != controller.On || !slices.Equal(a.Sensors, want) {
				t.Errorf("%s, sensors %q: want %q", a.Finding, a.Sensors, want)
			}
			if got := e.Requests() - before; got != tc.requests {
				t.Errorf("%d requests for sensors: want %d", got, tc.requests)
			}
		})
	}
}

// requestsOfLook returns the number of requests of a full look at a controller without any sensors, apart from the one for the collection
// and the one for ThermalMetrics.
func requestsOfLook(t *testing.T) int {
	t.Helper()
	e := powertest.New(t)
	e.Collection(false)
	_ = lookAt(t, place(controllerAt(e)), true)
	return e.Requests() - 2
}

// TestOldAndNewSensorsAreNotDoubled: with Thermal but without Power the collection adds the other sensors; with both it is not read.
func TestOldAndNewSensorsAreNotDoubled(t *testing.T) {
	t.Parallel()
	e := powertest.New(t)
	e.Sensors(powertest.Sensor{Name: "Inlet", Celsius: 23.5, Health: "OK"})
	asked := 0
	e.Instead(powertest.Sensors, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		_, _ = io.WriteString(w, `{"Members":[{"Name":"Inlet","Reading":23.5,"ReadingType":"Temperature","ReadingUnits":"Cel"},
			{"Name":"P12V","Reading":12,"ReadingType":"Voltage","ReadingUnits":"V"}]}`)
	})
	if a := lookAt(t, place(controllerAt(e)), true); len(a.Sensors) != 3 || asked != 0 {
		t.Errorf("with Thermal and Power: %q, collection read %d times: want 3 sensors without it", a.Sensors, asked)
	}
	e.Instead(powertest.Chassis+"/Power", statusOnly(http.StatusNotFound))
	want := []string{"Inlet 23.5 °C: OK", "P12V 12 V: no health stated"}
	if a := lookAt(t, place(controllerAt(e)), true); !slices.Equal(a.Sensors, want) {
		t.Errorf("without Power: %q: want %q", a.Sensors, want)
	}
}

// TestLargeSensorsCollectionIsBounded in requests and lines.
func TestLargeSensorsCollectionIsBounded(t *testing.T) {
	t.Parallel()
	for _, expands := range []bool{true, false} {
		e := powertest.New(t)
		var all []map[string]any
		for i := range 1000 {
			all = append(all, modern(fmt.Sprintf("T%d", i), i, "Cel", "Enabled", "OK"))
		}
		all[60] = modern("hot", 99, "Cel", "Enabled", "Critical")
		want := []string{"hot 99 °C: Critical", "sensors not read: " + powertest.Sensors + ": more sensors than a look reads: some are missing"}
		if expands {
			all[150] = modern("hotter", 100, "Cel", "Enabled", "Critical")
			want = slices.Insert(want, 1, "hotter 100 °C: Critical")
		}
		e.Collection(expands, all...)
		a := lookAt(t, place(controllerAt(e)), true)
		if len(a.Sensors) != controller.MaxLines || !slices.Equal(a.Sensors[:len(want)], want) {
			t.Errorf("expands %t: %q: want %d lines, the worst first", expands, a.Sensors, controller.MaxLines)
		}
		if n := e.Requests(); n > 20+maxSensorPages+maxSensorReads {
			t.Errorf("expands %t: %d requests", expands, n)
		}
	}
}

// TestHostileSensorsLeaveThePowerState: each failure is named in one line, after the sensors at fault, and the power state stays known.
func TestHostileSensorsLeaveThePowerState(t *testing.T) {
	t.Parallel()
	stranger := powertest.New(t)
	giant := strings.Repeat("9", 4096)
	const failure = "sensors not read: " + powertest.Sensors
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   []string // beginnings of the lines
	}{
		"giant": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"Members":["`)
			for range 1024 {
				_, _ = io.WriteString(w, giant)
			}
			_, _ = io.WriteString(w, `"]}`)
		}, []string{failure + ": the answer is longer than 1048576 bytes"}},
		"no JSON":      {text("<html>log in</html>"), []string{failure + ": invalid character '<'"}},
		"wrong types":  {text(`{"Members":{"a":1}}`), []string{failure + ": json: cannot unmarshal object"}},
		"out of order": {statusOnly(http.StatusServiceUnavailable), []string{failure + ": 503"}},
		"cut off":      {func(w http.ResponseWriter, _ *http.Request) { hijack(w, "") }, []string{failure}},
		"one wrong member": {text(`{"Members":[{"Name":"A","Reading":"hot"},{"Name":"B","Reading":1,"Status":{"Health":"Critical"}},
			{"Name":"C","Reading":2}]}`), []string{"B 1: Critical", failure + ": json: cannot unmarshal string", "C 2: no health stated"}},
		"absurd number": {text(`{"Members":[{"Name":"A","Reading":1e999}]}`), []string{failure + ": json: cannot unmarshal number"}},
		"elsewhere": {text(`{"Members":[{"@odata.id":"` + stranger.URL + `/redfish/v1/x"}]}`),
			[]string{"sensors not read: " + stranger.URL + "/redfish/v1/x: the path leads elsewhere"}},
		"above": {text(`{"Members":[{"@odata.id":"/redfish/v1/../../secret"}]}`),
			[]string{"sensors not read: /redfish/v1/../../secret: the path leads elsewhere"}},
		"pages elsewhere": {text(`{"Members":[{"Name":"A","Reading":1}],"Members@odata.nextLink":"//192.0.2.1/redfish/v1/"}`),
			[]string{"sensors not read: //192.0.2.1/redfish/v1/: the path leads elsewhere", "A 1: no health stated"}},
		"pages in a circle": {text(`{"Members":[{"Name":"A","Reading":1}],"Members@odata.nextLink":"` + powertest.Sensors + `"}`),
			[]string{failure + ": more sensors", "A 1: ", "A 1: ", "A 1: ", "A 1: "}},
		"members in a circle": {text(`{"Members":[{"@odata.id":"` + powertest.Sensors + `"}]}`), nil},
		"control characters": {text(`{"Members":[{"Name":"\u001b[2JA\n","Reading":1,"ReadingUnits":"\u0007","Status":{"Health":"\u001bbad"}}]}`),
			[]string{"[2JA 1: bad"}},
		"endless name": {text(`{"Members":[{"Name":"` + giant + `","Reading":1}]}`), []string{strings.Repeat("9", controller.MaxText)}},
		"nothing":      {text(`{}`), nil},
		"null":         {text(`{"Members":[null,{}]}`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := powertest.New(t)
			e.Collection(true)
			e.Instead(powertest.Sensors, tc.answer)
			a := lookAt(t, place(controllerAt(e)), true)
			if a.Finding != controller.On || a.Health != controller.Good ||
				!slices.EqualFunc(a.Sensors, tc.want, strings.HasPrefix) {
				t.Errorf("%+v: want powered on, and %q", a, tc.want)
			}
		})
	}
	t.Cleanup(func() {
		if n := stranger.Requests(); n > 0 {
			t.Errorf("%d requests to another host", n)
		}
	})
}

// TestSlowSensorsEndWithTheLook: sensors that never answer cost no more than the time of one look, and leave the power state known.
func TestSlowSensorsEndWithTheLook(t *testing.T) {
	t.Parallel()
	e := powertest.New(t)
	e.Collection(false, modern("Inlet", 1, "Cel", "Enabled", "OK"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e.Instead(powertest.Sensors+"/0", func(_ http.ResponseWriter, r *http.Request) {
		cancel() // the time of the look ends
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // return would send an empty answer, which can arrive while the client closes its end
	})
	begun := time.Now()
	a, err := place(controllerAt(e)).readRedfish(ctx, "calvin", true)
	if err != nil || a.Finding != controller.On || len(a.Sensors) != 1 || !strings.Contains(a.Sensors[0], "context canceled") {
		t.Errorf("%+v, %v: want powered on, and the reason that sensors are missing", a, err)
	}
	if d := time.Since(begun); d > time.Minute {
		t.Errorf("the look lasted %s", d)
	}
}
