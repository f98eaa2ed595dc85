package memstore

import (
	"context"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// LastDiagnosis implements the store.
func (s *Store) LastDiagnosis(context.Context) (*lofamov1.DiagnosisReport, error) {
	d, _, err := s.reports()
	return d, err
}

// LastProcedure implements the store.
func (s *Store) LastProcedure(context.Context) (*lofamov1.ProcedureReport, error) {
	_, p, err := s.reports()
	return p, err
}

func (s *Store) reports() (*lofamov1.DiagnosisReport, *lofamov1.ProcedureReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var w store.Write
	for _, k := range s.kept(store.Prefix + "managed/") {
		w.Puts = append(w.Puts, k.KV)
	}
	return store.DecodeReports(w)
}

// LastOrdered implements the store.
func (s *Store) LastOrdered(context.Context) (*store.Ordered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.DecodeOrdered(s.keys[store.OrderedKey].Value)
}
