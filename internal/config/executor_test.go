package config

import (
	"strings"
	"testing"
	"time"
)

func TestExecutorClientDefaultsAndBounds(t *testing.T) {
	if err := (ExecutorClient{Address: "10.0.0.9:7010"}).Validate(); err != nil {
		t.Error(err)
	}
	f := ExecutorClient{SettleTimeout: Duration(time.Second)}.Filled()
	if time.Duration(f.DialTimeout) != 5*time.Second || time.Duration(f.SettleTimeout) != time.Second {
		t.Errorf("%+v", f)
	}
	err := ExecutorClient{Address: "0.0.0.0:1", DialTimeout: 1, SettleTimeout: Duration(time.Hour)}.Validate()
	for _, field := range []string{"address", "dialTimeout", "settleTimeout"} {
		if err == nil || !strings.Contains(err.Error(), field+": given") {
			t.Errorf("%v: want %s named", err, field)
		}
	}
}

func TestExecutorProcessValidationNamesField(t *testing.T) {
	good := Process{Cluster: "c", Listen: "10.0.0.9:7010", TLS: SupervisorTLS{CA: "a", Cert: "b", Key: "c"},
		Log: LogConfig{Level: "info", Format: "text"}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	err := Process{}.Validate()
	for _, field := range []string{"cluster", "listen", "tls.ca", "tls.cert", "tls.key", "log.level", "log.format"} {
		if err == nil || !strings.Contains(err.Error(), field+": given") {
			t.Errorf("%v: want %s named", err, field)
		}
	}
}
