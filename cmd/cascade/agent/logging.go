package agent

import (
	"fmt"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// logging is what is logged.
type logging struct {
	text  string
	level zapcore.Level
}

func (l *logging) bind(f *pflag.FlagSet) {
	f.StringVar(&l.text, "log-level", "info", "debug, info or error")
}

func (l *logging) check() error {
	if err := l.level.UnmarshalText([]byte(l.text)); err != nil {
		return fmt.Errorf("cannot use --log-level %q: use debug, info or error", l.text)
	}
	return nil
}

// build makes the logger of the process. The libraries log by it, too.
func (l *logging) build() logr.Logger {
	logger := zap.New(zap.JSONEncoder(func(c *zapcore.EncoderConfig) { c.EncodeTime = zapcore.ISO8601TimeEncoder }),
		zap.Level(l.level), zap.StacktraceLevel(zapcore.PanicLevel))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	return logger
}
