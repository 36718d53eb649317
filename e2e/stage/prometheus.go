package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Prometheus is one that runs: where its API is.
type Prometheus struct{ URL string }

// Sample is one series of an answer, at the moment of the question.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// mostAnswer bounds what a Prometheus may answer.
const mostAnswer = 16 << 20

// Query asks for an instant vector; no series is no error.
func (p Prometheus) Query(ctx context.Context, expr string) (_ []Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("cannot ask Prometheus: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, mostAnswer)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("cannot read the answer of Prometheus to %s: %w", expr, err)
	}
	if answer.Status != "success" || answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("cannot query Prometheus for %s: %s of type %q: %s", expr, answer.Status, answer.Data.ResultType, answer.Error)
	}
	var samples []Sample
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("cannot read the value of %v: %w", r.Metric, err)
		}
		samples = append(samples, Sample{r.Metric, value})
	}
	return samples, nil
}
