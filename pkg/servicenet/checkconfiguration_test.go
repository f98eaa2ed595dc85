package servicenet

import (
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func torusConfiguration() *lofamov1.TorusConfiguration {
	return &lofamov1.TorusConfiguration{
		Number: 9, Dims: "4x4x4", Absent: []uint32{3, 7}, DelayUs: 20_000, Masks: []*lofamov1.TorusMask{{Rank: 1, Mask: 0x3e},
			{Rank: 2, Mask: 0x3d}}, Part: 1, Parts: 2,
	}
}

func TestConfigurationMessageIsBounded(t *testing.T) {
	for _, tc := range []struct {
		edit func(c *lofamov1.TorusConfiguration)
		want string
	}{
		{func(*lofamov1.TorusConfiguration) {}, ""},
		{func(c *lofamov1.TorusConfiguration) { c.Number = 0 }, "torus_configuration.number: given 0"},
		{func(c *lofamov1.TorusConfiguration) { c.Dims = "" }, "dims: given 0 bytes"},
		{func(c *lofamov1.TorusConfiguration) { c.DelayUs = 99 }, "delay_us: given 99: want 100 to 10000000"},
		{func(c *lofamov1.TorusConfiguration) { c.Part = 2 }, "part: given 2 of 2"},
		{func(c *lofamov1.TorusConfiguration) { c.Parts = 65 }, "part: given 1 of 65"},
		{func(c *lofamov1.TorusConfiguration) { c.Absent = []uint32{3, 3} }, "absent: given 3 behind 3"},
		{func(c *lofamov1.TorusConfiguration) { c.Absent = make([]uint32, 201) }, "absent: given 201: want at most 200"},
		{func(c *lofamov1.TorusConfiguration) { c.Masks = make([]*lofamov1.TorusMask, 101) }, "masks: given 101: want at most 100"},
		{func(c *lofamov1.TorusConfiguration) { c.Masks[1].Rank = 1 }, "masks: given rank 1 behind 1"},
		{func(c *lofamov1.TorusConfiguration) { c.Masks[0].Mask = 64 }, "masks.mask: given 0x40"},
	} {
		c := torusConfiguration()
		tc.edit(c)
		err := checkBody(&lofamov1.Message{Body: &lofamov1.Message_TorusConfiguration{TorusConfiguration: c}})
		if tc.want == "" && err != nil || tc.want != "" &&
			(err == nil || RefusalOf(err) != RefusedField || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
	for _, tc := range []struct {
		s    *lofamov1.ConfigurationStatus
		want bool
	}{{&lofamov1.ConfigurationStatus{Node: "n0", Epoch: 1}, true}, {&lofamov1.ConfigurationStatus{Node: "n0"}, false},
		{&lofamov1.ConfigurationStatus{Epoch: 1}, false}} {
		if err := checkBody(&lofamov1.Message{Body: &lofamov1.Message_ConfigurationStatus{ConfigurationStatus: tc.s}}); (err == nil) != tc.want {
			t.Errorf("%v: %v", tc.s, err)
		}
	}
}
