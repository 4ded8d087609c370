// Activation functions of feed-forwards, in the order of models/feed_forwards.py Activation.
#pragma once

#include "blocks.h"

enum Activation { kSilu, kGeluTanh, kGelu, kRelu2, kSwigluClamped };

DEVICE f32 activated(i32 kind, f32 gate, f32 up) {
    if (kind == kSwigluClamped) {
        gate = least(gate, 7.0f);
        up = least(most(up, -7.0f), 7.0f);
        return gate * sigmoid(1.702f * gate) * (up + 1.0f);
    }
    if (kind == kGeluTanh) return 0.5f * gate * (1.0f + hyperbolic_tangent(0.7978845608f * gate * (1.0f + 0.044715f * gate * gate))) * up;
    if (kind == kGelu) return 0.5f * gate * (1.0f + error_function(gate * 0.7071067812f)) * up;
    if (kind == kRelu2) return most(gate, 0.0f) * most(gate, 0.0f) * up;
    return gate * sigmoid(gate) * up;
}
